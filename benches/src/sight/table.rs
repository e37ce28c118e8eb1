//! What was compared, as a table: printed as it grows, asserted when it is complete.

use std::fmt::Display;

use super::{float, say};

/// A table of comparisons.
#[derive(Debug)]
#[must_use = "it asserts at its end"]
pub struct Table {
    wrong: Vec<String>,
}

/// The worst of several relative errors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Worst {
    /// How many were compared.
    pub compared: u64,
    /// A share of the true value.
    pub error: f64,
}

impl Worst {
    /// Compares what was told with what is true.
    pub fn add(&mut self, told: f64, truth: f64) {
        self.compared += 1;
        let error = (told - truth).abs() / truth.abs().max(f64::MIN_POSITIVE);
        // What is no number is as wrong as can be.
        let error = if error.is_nan() { f64::INFINITY } else { error };
        self.error = self.error.max(error);
    }
}

impl Table {
    /// An empty one.
    pub fn new() -> Self {
        say("| what | compared | worst error | allowed |");
        say("|---|---|---|---|");
        Self { wrong: Vec::new() }
    }

    /// Two counts that must be the same.
    pub fn same(&mut self, what: &str, compared: u64, told: f64, truth: u64) {
        let error = (told - float(truth)).abs();
        self.row(what, compared, &error, &0, error < 0.5);
    }

    /// Relative errors that must be within a share.
    pub fn within(&mut self, what: &str, worst: Worst, allowed: f64) {
        let percent = |share: f64| format!("{:.4} %", share * 100.0);
        let (error, most) = (percent(worst.error), percent(allowed));
        let is_within = worst.compared > 0 && worst.error <= allowed;
        self.row(what, worst.compared, &error, &most, is_within);
    }

    /// Durations that must be the same to the nanosecond: what is left is the rounding of a float.
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

    /// Asserts all rows.
    ///
    /// # Panics
    /// If one of them is wrong.
    pub fn check(self) {
        assert!(self.wrong.is_empty(), "wrong:\n{}", self.wrong.join("\n"));
    }
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}
