use std::fmt;

/// One thing that [`Probe`](super::Probe) checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// Nothing is polled over and over while there is nothing to do.
    Spin,
    /// The service below is never called unready.
    Readiness,
    /// Once ready, ready until `call`.
    ReadyStays,
    /// Whatever is pending is woken.
    Wakeup,
    /// A drop in any state gives back all that was held.
    Cancel,
    /// A panic below leaves calls that end.
    Panic,
    /// After an error of the readiness below, calls end.
    ReadyError,
    /// Idle clones hold no readiness of the service below.
    IdleReadiness,
}

impl Check {
    /// In the order in which they run.
    pub(super) const ALL: [Self; 8] = [
        Self::Spin,
        Self::Readiness,
        Self::ReadyStays,
        Self::Wakeup,
        Self::Cancel,
        Self::Panic,
        Self::ReadyError,
        Self::IdleReadiness,
    ];
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A check that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// Which check.
    pub check: Check,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.what)
    }
}

/// What [`Probe::run`](super::Probe::run) found. Shown, it is one line per violation.
#[derive(Clone, Debug, Default)]
pub struct Report {
    violations: Vec<Violation>,
}

impl Report {
    /// Whether all checks held.
    pub fn is_ok(&self) -> bool {
        self.violations.is_empty()
    }

    /// The checks that did not hold.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Whether `check` did not hold.
    pub fn found(&self, check: Check) -> bool {
        self.violations.iter().any(|violation| violation.check == check)
    }

    pub(super) fn add(&mut self, check: Check, what: impl Into<String>) {
        let violation = Violation { check, what: what.into() };
        if !self.violations.contains(&violation) {
            self.violations.push(violation);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_ok() {
            return f.write_str("all checks held");
        }
        writeln!(f, "the layer breaks the contract of a tower service:")?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "- {violation}"))
    }
}
