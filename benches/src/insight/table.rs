//! A table that compares reported figures with true figures. A row is printed when it is added.
//! When the table is complete, [`Table::check`] asserts that all rows are right.

use std::fmt::Display;

use super::{float, say};

/// A table of comparisons; [`Table::check`] asserts that its rows are right.
#[derive(Debug)]
#[must_use = "the table asserts nothing until `check` is called"]
pub struct Table {
    wrong: Vec<String>,
}

/// The largest of several relative errors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Worst {
    /// Number of compared values.
    pub compared: u64,
    /// The largest error, as a fraction of the true value.
    pub error: f64,
}

impl Worst {
    /// Compares a reported value with the true value.
    pub fn add(&mut self, reported: f64, truth: f64) {
        self.compared += 1;
        let error = (reported - truth).abs() / truth.abs().max(f64::MIN_POSITIVE);
        // NaN counts as an infinite error.
        let error = if error.is_nan() { f64::INFINITY } else { error };
        self.error = self.error.max(error);
    }
}

impl Table {
    /// Creates an empty table, and prints its header.
    pub fn new() -> Self {
        say("| figure | compared | largest error | allowed |");
        say("|---|---|---|---|");
        Self { wrong: Vec::new() }
    }

    /// Adds a row for two counts that must be equal. `compared` is the number of things that were
    /// compared, for example operations or query shapes.
    pub fn same(&mut self, what: &str, compared: u64, reported: f64, truth: u64) {
        let error = (reported - float(truth)).abs();
        self.row(what, compared, &error, &0, error < 0.5);
    }

    /// Adds a row for relative errors that must be at most `allowed`. The row is also wrong if no
    /// values were compared.
    pub fn within(&mut self, what: &str, worst: Worst, allowed: f64) {
        let percent = |share: f64| format!("{:.4} %", share * 100.0);
        let (error, most) = (percent(worst.error), percent(allowed));
        let is_within = worst.compared > 0 && worst.error <= allowed;
        self.row(what, worst.compared, &error, &most, is_within);
    }

    /// Adds a row for durations. Each reported duration must have the same number of nanoseconds as
    /// the true duration. The allowed relative error only covers the rounding of floats.
    pub fn exact(&mut self, what: &str, worst: Worst) {
        self.within(what, worst, 1e-12);
    }

    fn row(
        &mut self,
        what: &str,
        compared: u64,
        error: &dyn Display,
        allowed: &dyn Display,
        is_right: bool,
    ) {
        let row = format!("| {what} | {compared} | {error} | {allowed} |");
        say(&row);
        if !is_right {
            self.wrong.push(row);
        }
    }

    /// Asserts that all rows are right.
    ///
    /// # Panics
    /// If the error in a row is larger than allowed, or if a row of relative errors compared no
    /// values.
    pub fn check(self) {
        assert!(
            self.wrong.is_empty(),
            "wrong rows:\n{}",
            self.wrong.join("\n")
        );
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}
