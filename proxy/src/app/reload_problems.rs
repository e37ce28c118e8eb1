//! The problems that prevent a reload.

/// The problems of a new configuration, without duplicates.
#[derive(Debug, Default)]
pub(super) struct ReloadProblems(Vec<String>);

impl ReloadProblems {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn into_list(self) -> Vec<String> {
        self.0
    }

    pub(super) fn add(&mut self, problem: String) {
        if !self.0.contains(&problem) {
            self.0.push(problem);
        }
    }

    /// Returns the value of `result`. If `result` is an error, adds the error to the problems and
    /// returns `None`.
    pub(super) fn unless_failed<T, E: ToString>(&mut self, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(error.to_string())).ok()
    }
}
