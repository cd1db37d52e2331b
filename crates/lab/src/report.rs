//! What an experiment found, and its forms: a text for people, a JSON line, a page of `docs/measurements.md`.

use crate::chart::Chart;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// What must hold of a row.
#[derive(Clone, Copy, Debug)]
pub enum Bar {
    /// Our figure is at most this.
    AtMost(f64),
    /// Our figure is at least this.
    AtLeast(f64),
    /// Our figure over the peer's is at most this.
    RatioAtMost(f64),
    /// Our figure over the peer's is at least this.
    RatioAtLeast(f64),
    /// Our figure differs from the peer's by at most this fraction of the peer's.
    Within(f64),
    /// Our figure is exactly this.
    Exactly(f64),
}

impl Bar {
    fn holds(self, ours: f64, ratio: Option<f64>) -> Option<bool> {
        match self {
            Self::AtMost(most) => Some(ours <= most),
            Self::AtLeast(least) => Some(ours >= least),
            Self::RatioAtMost(most) => ratio.map(|ratio| ratio <= most),
            Self::RatioAtLeast(least) => ratio.map(|ratio| ratio >= least),
            Self::Within(fraction) => ratio.map(|ratio| (ratio - 1.0).abs() <= fraction),
            Self::Exactly(value) => Some(ours == value),
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(most) => format!("<= {}", number(most)),
            Self::AtLeast(least) => format!(">= {}", number(least)),
            Self::RatioAtMost(most) => format!("<= {} x", number(most)),
            Self::RatioAtLeast(least) => format!(">= {} x", number(least)),
            Self::Within(fraction) => format!("within {} %", number(fraction * 100.0)),
            Self::Exactly(value) => format!("= {}", number(value)),
        }
    }
}

/// One figure, beside a peer's where there is one, against its bar where it has one.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    case: String,
    unit: String,
    ours: Option<f64>,
    peer: Option<f64>,
    ratio: Option<f64>,
    /// `None`: for information.
    bar: Option<String>,
    /// `None`: not judged, because there is no bar or no figure.
    ok: Option<bool>,
    /// Why there is no figure.
    #[serde(skip)]
    note: Option<&'static str>,
    #[serde(skip)]
    rule: Option<Bar>,
}

impl Row {
    /// A figure of ours, which may be missing (see [`note`](Self::note)).
    pub fn new(case: impl Into<String>, unit: impl Into<String>, ours: impl Into<Option<f64>>) -> Self {
        Self {
            case: case.into(),
            unit: unit.into(),
            ours: ours.into(),
            peer: None,
            ratio: None,
            bar: None,
            ok: None,
            note: None,
            rule: None,
        }
    }

    /// The peer's figure, and with it the ratio.
    pub fn peer(mut self, peer: impl Into<Option<f64>>) -> Self {
        self.peer = peer.into();
        self.ratio = match (self.ours, self.peer) {
            (Some(ours), Some(peer)) if peer != 0.0 => Some(ours / peer),
            _ => None,
        };
        self.judged()
    }

    /// What must hold.
    pub fn bar(mut self, bar: Bar) -> Self {
        self.bar = Some(bar.text());
        self.rule = Some(bar);
        self.judged()
    }

    /// Why a figure is missing.
    pub fn note(mut self, note: Option<&'static str>) -> Self {
        self.note = note;
        self
    }

    fn judged(mut self) -> Self {
        self.ok = match (self.rule, self.ours) {
            (Some(bar), Some(ours)) => bar.holds(ours, self.ratio),
            _ => None,
        };
        self
    }
}

/// A table of detail for people.
#[derive(Clone, Debug)]
pub struct Table {
    title: String,
    head: Vec<String>,
    lines: Vec<Vec<String>>,
}

impl Table {
    /// An empty table; the first column is text, the others are figures.
    pub fn new<S: Into<String>>(title: impl Into<String>, head: impl IntoIterator<Item = S>) -> Self {
        Self { title: title.into(), head: head.into_iter().map(Into::into).collect(), lines: Vec::new() }
    }

    /// Adds a line, one cell a column.
    pub fn line(&mut self, cells: impl IntoIterator<Item = String>) {
        self.lines.push(cells.into_iter().collect());
    }

    fn text(&self) -> String {
        let mut out = String::new();
        if !self.title.is_empty() {
            let _ = writeln!(out, "{}\n", self.title);
        }
        out + &aligned(&self.head, &self.lines)
    }
}

/// Markdown with its columns aligned, so that it reads well as plain text too.
fn aligned(head: &[String], lines: &[Vec<String>]) -> String {
    let width = |column: usize| {
        lines
            .iter()
            .chain([&head.to_vec()])
            .filter_map(|line| line.get(column))
            .map(|cell| cell.chars().count())
            .max()
    };
    let widths: Vec<usize> = (0..head.len()).map(|column| width(column).unwrap_or(0).max(3)).collect();
    let mut out = String::new();
    let mut put = |cells: &[String]| {
        for (column, cell) in cells.iter().enumerate() {
            let width = widths.get(column).copied().unwrap_or(0);
            let _ =
                if column == 0 { write!(out, "| {cell:<width$} ") } else { write!(out, "| {cell:>width$} ") };
        }
        out.push_str("|\n");
    };
    put(head);
    put(&widths
        .iter()
        .enumerate()
        .map(
            |(column, width)| {
                if column == 0 { "-".repeat(*width) } else { format!("{}:", "-".repeat(width - 1)) }
            },
        )
        .collect::<Vec<_>>());
    for line in lines {
        put(line);
    }
    out
}

/// A number as people read it: three significant digits, or all of an integer's.
pub fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let digits = if value.fract() == 0.0 || value.abs() >= 1000.0 {
        0
    } else {
        (2 - value.abs().log10().floor() as i32).clamp(0, 6) as usize
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), number)
}

/// The name of an experiment, and how it is run.
pub type Experiment = (&'static str, fn() -> Report);

/// Everything one experiment found.
#[derive(Clone, Debug)]
pub struct Report {
    experiment: &'static str,
    title: &'static str,
    about: Vec<String>,
    rows: Vec<Row>,
    tables: Vec<Table>,
    charts: Vec<Chart>,
}

impl Report {
    /// An empty report of `experiment`.
    pub fn new(experiment: &'static str, title: &'static str) -> Self {
        Self {
            experiment,
            title,
            about: Vec::new(),
            rows: Vec::new(),
            tables: Vec::new(),
            charts: Vec::new(),
        }
    }

    /// Adds a paragraph that says how it was measured, or what to read out of it.
    pub fn about(&mut self, paragraph: impl Into<String>) {
        self.about.push(paragraph.into());
    }

    /// Adds a row.
    pub fn row(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Adds a table of detail.
    pub fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// Adds a picture, drawn where the measurements are written.
    pub fn chart(&mut self, chart: Chart) {
        self.charts.push(chart);
    }

    /// Whether no judged row misses its bar.
    pub fn ok(&self) -> bool {
        self.rows.iter().all(|row| row.ok != Some(false))
    }

    fn summary(&self) -> String {
        let head = ["case", "unit", "ours", "peer", "ratio", "bar", "ok"].map(String::from);
        let lines: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| {
                let ok = match (row.ok, row.note) {
                    (Some(true), _) => "yes",
                    (Some(false), _) => "NO",
                    (None, Some(note)) => note,
                    (None, None) => "",
                };
                let bar = row.bar.clone().unwrap_or_default();
                let (ours, peer, ratio) = (figure(row.ours), figure(row.peer), figure(row.ratio));
                vec![row.case.clone(), row.unit.clone(), ours, peer, ratio, bar, ok.into()]
            })
            .collect();
        aligned(&head, &lines)
    }

    fn body(&self) -> String {
        let mut out = String::new();
        for paragraph in &self.about {
            let _ = writeln!(out, "{paragraph}\n");
        }
        if !self.rows.is_empty() {
            let _ = writeln!(out, "{}", self.summary());
        }
        for table in &self.tables {
            let _ = writeln!(out, "{}", table.text());
        }
        out
    }

    /// For people.
    pub fn text(&self) -> String {
        format!("{}\n\n{}", self.title, self.body())
    }

    /// One line of JSON.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            experiment: &'a str,
            rows: &'a [Row],
            ok: bool,
        }
        let line = Line { experiment: self.experiment, rows: &self.rows, ok: self.ok() };
        serde_json::to_string(&line).expect("strings and numbers always have a form")
    }

    fn page(&self) -> String {
        let mut out = format!("## {}\n\n{}", self.title, self.body());
        for chart in &self.charts {
            let _ =
                writeln!(out, "![{}]({})\n", chart.title(), Path::new(PICTURES).join(chart.file()).display());
        }
        out
    }
}

/// The directory of the pictures, beside the page that shows them.
const PICTURES: &str = "measurements";

/// Runs every experiment, writes `docs/measurements.md` with its pictures, and joins the rows into one report.
pub fn all(experiments: &[Experiment]) -> std::io::Result<Report> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    std::fs::create_dir_all(docs.join(PICTURES))?;
    let mut joined = Report::new("all", "All experiments");
    let mut page = String::from(
        "# Measurements\n\nWritten by `cargo run --release -p lab -- all`, which measures the peers in the same run. \
         Instructions, allocations, bytes and everything in virtual time repeat exactly; times are medians over \
         interleaved rounds on a shared machine, and only their ratios are judged.\n\n",
    );
    let _ = writeln!(page, "Measured: {}.\n", versions());
    for (name, run) in experiments {
        eprintln!("lab: {name}");
        let report = run();
        page.push_str(&report.page());
        for chart in &report.charts {
            std::fs::write(docs.join(PICTURES).join(chart.file()), chart.svg())?;
        }
        joined
            .rows
            .extend(report.rows.into_iter().map(|row| Row { case: format!("{name}: {}", row.case), ..row }));
    }
    let page = format!("{}\n", page.trim_end());
    std::fs::write(docs.join("measurements.md"), page)?;
    Ok(joined)
}

/// What was measured, as the lock file of this build has it, and by which compiler.
fn versions() -> String {
    const LOCK: &str = include_str!("../../../Cargo.lock");
    let locked = |name: &str| {
        let at = LOCK.find(&format!("name = \"{name}\"\n"))?;
        let version = LOCK[at..].lines().nth(1)?.strip_prefix("version = \"")?.strip_suffix('"')?;
        Some(format!("{name} {version}"))
    };
    let mut parts: Vec<String> =
        ["tower-sluice", "tower", "tower-resilience", "tokio"].into_iter().filter_map(locked).collect();
    if let Ok(out) = std::process::Command::new("rustc").arg("--version").output() {
        parts.push(String::from_utf8_lossy(&out.stdout).trim().to_owned());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_judged_by_its_bar_alone() {
        let row = |bar| Row::new("c", "u", 50.0).peer(100.0).bar(bar).ok;
        assert_eq!(row(Bar::AtMost(50.0)), Some(true));
        assert_eq!(row(Bar::AtMost(49.0)), Some(false));
        assert_eq!(row(Bar::AtLeast(51.0)), Some(false));
        assert_eq!(row(Bar::RatioAtMost(0.5)), Some(true));
        assert_eq!(row(Bar::RatioAtLeast(0.6)), Some(false));
        assert_eq!(row(Bar::Within(0.5)), Some(true));
        assert_eq!(row(Bar::Within(0.4)), Some(false));
        assert_eq!(row(Bar::Exactly(50.0)), Some(true));
        assert_eq!(Row::new("c", "u", 50.0).ok, None);
        assert_eq!(Row::new("c", "u", None).bar(Bar::AtMost(1.0)).ok, None);
    }

    #[test]
    fn one_missed_bar_fails_the_report_and_missing_figures_do_not() {
        let mut report = Report::new("x", "X");
        report.row(Row::new("a", "u", None).bar(Bar::AtMost(1.0)).note(Some("no valgrind")));
        report.row(Row::new("b", "u", 1.0));
        assert!(report.ok());
        assert_eq!(
            report.json(),
            r#"{"experiment":"x","rows":[{"case":"a","unit":"u","ours":null,"peer":null,"ratio":null,"bar":"<= 1","ok":null},{"case":"b","unit":"u","ours":1.0,"peer":null,"ratio":null,"bar":null,"ok":null}],"ok":true}"#
        );
        report.row(Row::new("c", "u", 2.0).bar(Bar::AtMost(1.0)));
        assert!(!report.ok());
    }

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!(
            ["0", "0.015", "0.5", "12.3", "540", "98765"],
            [0.0, 0.015, 0.5, 12.34, 540.0, 98765.4].map(number)
        );
    }
}
