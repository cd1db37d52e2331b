//! What facts mean to one ladder, and what a ladder did about it.

use std::fmt;

/// What one window's facts mean to a ladder.
///
/// Ordered by how much it weighs when rules are combined to the worst: slack, unknown, steady, strain. So slack is
/// read only where every rule reads it, and strain where any does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reading {
    /// There is room for more than is done at this level.
    Slack,
    /// Too little happened to tell. Neither strain nor slack.
    Unknown,
    /// The level fits.
    Steady,
    /// Less has to be done.
    Strain,
}

impl Reading {
    /// The name used in events: `slack`, `unknown`, `steady`, `strain`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Slack => "slack",
            Self::Unknown => "unknown",
            Self::Steady => "steady",
            Self::Strain => "strain",
        }
    }
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a level changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// Down one rung: a reading of strain.
    Strain,
    /// Up one rung: slack has held.
    Slack,
    /// Up one rung: for long nothing was read that speaks against it.
    Silence,
    /// To any rung: somebody forced it.
    Forced,
}

impl Cause {
    /// The name used in events: `strain`, `slack`, `silence`, `forced`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Strain => "strain",
            Self::Slack => "slack",
            Self::Silence => "silence",
            Self::Forced => "forced",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
