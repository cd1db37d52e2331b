//! The model behind the AWS Architecture Blog's article "Exponential Backoff And Jitter" (M. Brooker, 2015): clients
//! contend for one optimistic write, and back off when they lose.
//!
//! Its rules, as the published simulator has them: a client reads the version, writes with it, and on a conflict backs
//! off and reads again; every message takes |normal(10, 2)| ms; the k-th retry draws on `base * 2^k`, k from 1 (ours
//! draws the first on `base`, so its series is entered one step later); decorrelated jitter begins at `base`.

use crate::chart::{Chart, Scale};
use crate::report::{Bar, Report, Row, Table, number};
use crate::stats::Random;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;
use tower_sluice::backoff::{Backoff, Delays, Jitter};

const TRIALS: u64 = 100;
const SEED: u64 = 7;

/// Clients, and what the published rules give: completion in ms and calls made.
type Reference = [(u64, f64, f64); 4];

/// A kind of backoff: its name, how a client's delays are made, and its reference.
struct Kind {
    name: &'static str,
    delays: fn(seed: u64, client: u64) -> Option<Delays>,
    reference: Reference,
    judged: bool,
}

fn backoff(jitter: Jitter) -> Backoff {
    Backoff::exponential(Duration::from_millis(5), Duration::from_secs(2)).jitter(jitter)
}

/// From the second step on, where the model enters the series.
fn second_step(jitter: Jitter, seed: u64, client: u64) -> Option<Delays> {
    let mut delays = backoff(jitter).delays(seed, client);
    delays.next();
    Some(delays)
}

const KINDS: [Kind; 6] = [
    Kind {
        name: "none",
        delays: |_, _| None,
        reference: [(10, 389.0, 52.0), (50, 1144.0, 693.0), (100, 2032.0, 2425.0), (190, 3535.0, 7996.0)],
        judged: false,
    },
    Kind {
        name: "exponential",
        delays: |seed, client| second_step(Jitter::None, seed, client),
        reference: [
            (10, 3534.0, 51.0),
            (50, 36544.0, 622.0),
            (100, 63820.0, 1866.0),
            (190, 101_009.0, 5175.0),
        ],
        judged: false,
    },
    Kind {
        name: "equal",
        delays: |seed, client| second_step(Jitter::Equal, seed, client),
        reference: [(10, 752.0, 43.0), (50, 4201.0, 347.0), (100, 6594.0, 813.0), (190, 9434.0, 1759.0)],
        judged: true,
    },
    Kind {
        name: "full",
        delays: |seed, client| second_step(Jitter::Full, seed, client),
        reference: [(10, 468.0, 39.0), (50, 2828.0, 333.0), (100, 4821.0, 795.0), (190, 7443.0, 1769.0)],
        judged: true,
    },
    Kind {
        name: "decorrelated",
        delays: |seed, client| Some(backoff(Jitter::Decorrelated).delays(seed, client)),
        reference: [(10, 436.0, 38.0), (50, 2164.0, 373.0), (100, 4602.0, 1000.0), (190, 7882.0, 2436.0)],
        judged: true,
    },
    Kind {
        name: "+-25 %",
        delays: |seed, client| second_step(Jitter::Proportional(0.25), seed, client),
        reference: [(10, 873.0, 42.0), (50, 5480.0, 348.0), (100, 8527.0, 813.0), (190, 11951.0, 1756.0)],
        judged: true,
    },
];

/// What arrives, where.
#[derive(Clone, Copy, Debug)]
enum Message {
    /// At the server: a client wants the version.
    Read,
    /// At the client: the version.
    Version(u64),
    /// At the server: a client writes, on this version.
    Write(u64),
    /// At the client: whether the write was taken.
    Written(bool),
}

/// A message on its way. The earliest is the greatest, for the heap; ties go by the order of sending.
struct Event {
    at: f64,
    sent: u64,
    client: usize,
    message: Message,
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.sent.cmp(&self.sent))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}

/// One trial: when the last client was done, and how many writes were tried.
fn trial(kind: &Kind, clients: u64, number: u64) -> (f64, u64) {
    let mut random = Random::new(&[SEED, clients, number]);
    let seed = random.next();
    let mut delays: Vec<_> = (0..clients).map(|client| (kind.delays)(seed, client)).collect();
    let mut events = BinaryHeap::new();
    let mut sent = 0;
    let mut send = |events: &mut BinaryHeap<Event>, at: f64, client, message| {
        sent += 1;
        events.push(Event { at: at + random.normal(10.0, 2.0).abs(), sent, client, message });
    };
    for client in 0..clients as usize {
        send(&mut events, 0.0, client, Message::Read);
    }
    let (mut version, mut writes, mut now) = (0, 0, 0.0);
    while let Some(Event { at, client, message, .. }) = events.pop() {
        now = at;
        match message {
            Message::Read => send(&mut events, now, client, Message::Version(version)),
            Message::Version(seen) => send(&mut events, now, client, Message::Write(seen)),
            Message::Write(seen) => {
                writes += 1;
                let taken = seen == version;
                version += u64::from(taken);
                send(&mut events, now, client, Message::Written(taken));
            }
            Message::Written(true) => {}
            Message::Written(false) => {
                let delay = delays[client].as_mut().and_then(Iterator::next).unwrap_or_default();
                send(&mut events, now + delay.as_secs_f64() * 1e3, client, Message::Read);
            }
        }
    }
    (now, writes)
}

/// Means over the trials: completion in ms, and writes tried.
fn mean(kind: &Kind, clients: u64) -> (f64, f64) {
    let sum = (0..TRIALS).fold((0.0, 0), |sum, number| {
        let (end, writes) = trial(kind, clients, number);
        (sum.0 + end, sum.1 + writes)
    });
    (sum.0 / TRIALS as f64, sum.1 as f64 / TRIALS as f64)
}

/// Runs the experiment.
pub fn run() -> Report {
    let mut report = Report::new("aws", "The AWS model of backoff and jitter");
    report.about(format!(
        "N clients contend for one optimistic write; every message takes |normal(10, 2)| ms; base 5 ms, cap 2 000 ms; \
         means of {TRIALS} trials. The peer is the published simulator's rules. Judged are the jitters at 10, 50 and \
         100 clients. Ours keeps +-25 % and decorrelated draws within the cap by narrowing the range, where the \
         published rules draw beyond it (+-25 %) or cut off what is drawn (decorrelated, whose draws then pile up at \
         the cap): with 190 clients, which reach it, these columns may differ."
    ));
    let mut time = Chart::new(
        "aws-completion.svg",
        "Until the last of N contending clients is done",
        ("clients", Scale::Linear),
        ("ms", Scale::Log),
    );
    let mut calls = Chart::new(
        "aws-calls.svg",
        "Writes tried by N contending clients",
        ("clients", Scale::Linear),
        ("writes", Scale::Linear),
    );
    let mut table = Table::new(
        "Completion in ms / writes tried:",
        std::iter::once("clients").chain(KINDS.iter().map(|kind| kind.name)),
    );
    let counts: Vec<u64> = (1..=19).map(|tens| 10 * tens).collect();
    let mut found = vec![Vec::new(); KINDS.len()];
    for (kind, found) in KINDS.iter().zip(&mut found) {
        found.extend(counts.iter().map(|clients| mean(kind, *clients)));
        let of = |clients: u64| {
            counts.iter().position(|count| *count == clients).map(|i| found[i]).unwrap_or_default()
        };
        for (clients, reference_ms, reference_calls) in kind.reference {
            let (ms, writes) = of(clients);
            let judged = kind.judged && clients <= 100;
            let row = |unit: &'static str, ours: f64, reference, within| {
                let row = Row::new(format!("{}, {clients} clients", kind.name), unit, ours).peer(reference);
                if judged { row.bar(Bar::Within(within)) } else { row }
            };
            report.row(row("ms", ms, reference_ms, 0.1));
            report.row(row("calls", writes, reference_calls, 0.05));
        }
        time.series(kind.name, counts.iter().zip(found.iter()).map(|(n, (ms, _))| (*n as f64, *ms)));
        calls.series(kind.name, counts.iter().zip(found.iter()).map(|(n, (_, writes))| (*n as f64, *writes)));
    }
    for (i, clients) in counts.iter().enumerate() {
        let cells = found
            .iter()
            .map(|found| format!("{} / {}", number(found[i].0.round()), number(found[i].1.round())));
        table.line(std::iter::once(clients.to_string()).chain(cells));
    }
    report.table(table);
    report.chart(time);
    report.chart(calls);
    report
}
