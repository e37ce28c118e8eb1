//! The audit log: the actions of operators, with the caller and the outcome.

use std::{
    fmt::Display,
    sync::{Arc, OnceLock},
};

/// Target of the lines of the audit log. No log level switches them off.
pub(crate) const AUDIT_TARGET: &str = "audit";

/// The line of an action in the audit log.
pub(crate) struct Action {
    action: String,
    /// The name of the caller's token, of the user or of the signal, or the reason why there is no
    /// name. `None` for a refused login to the dashboard, and for a logout whose token is no longer
    /// configured.
    caller: Option<String>,
    /// The address of the caller; `None` if no connection requested the action.
    peer: Option<String>,
    /// The subject of the caller's certificate; `None` if the caller presented none.
    certificate: Option<String>,
    parameters: ActionParameters,
    /// The HTTP status of the response; `None` if the action has none.
    status: Option<u16>,
    /// The outcome of an action without an HTTP status; `None` if the action has a status.
    outcome: Option<String>,
    /// Number of refused requests that the line reports; `None` if the request was not refused.
    refused: Option<u64>,
    /// The outcome of an action whose future is dropped before the action ends.
    early_end: &'static str,
}

/// The parameters in the body of a request. They are empty until the handler of the request has
/// read the body. Clones share the text.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActionParameters(Arc<OnceLock<String>>);

/// Maximum length of the parameters of an action, in bytes. It bounds the lines of the audit log.
const MAX_PARAMETERS_BYTES: usize = 4_096;

impl ActionParameters {
    /// Records the parameters, which must contain no secrets. If the text is too long, only its
    /// beginning is logged.
    pub(crate) fn record(&self, mut text: String) {
        if text.len() > MAX_PARAMETERS_BYTES {
            text.truncate(text.floor_char_boundary(MAX_PARAMETERS_BYTES));
            text.push('…');
        }
        // The error is ignored: a request has one handler, which records the parameters once.
        drop(self.0.set(text));
    }
}

impl Action {
    /// The line of an action that has not ended. `peer` is the address of the caller.
    pub(crate) fn new(action: String, caller: Option<String>, peer: Option<impl Display>) -> Self {
        Self {
            action,
            caller,
            peer: peer.map(|peer| peer.to_string()),
            certificate: None,
            parameters: ActionParameters::default(),
            status: None,
            outcome: None,
            refused: None,
            early_end: "the connection ended",
        }
    }

    /// The line of an action that has not ended, and that no connection requested. `caller` is its
    /// cause, for example a signal.
    pub(crate) fn without_peer(action: &str, caller: &str) -> Self {
        Self {
            early_end: "Seawall stopped",
            ..Self::new(action.to_owned(), Some(caller.to_owned()), None::<&str>)
        }
    }

    /// Adds the subject of the caller's certificate.
    pub(crate) fn with_certificate(mut self, subject: Option<String>) -> Self {
        self.certificate = subject;
        self
    }

    /// Logs an action that ended with this HTTP status.
    pub(crate) fn log_status(mut self, status: u16) {
        self.status = Some(status);
        self.log();
    }

    /// Logs an action that was refused with this HTTP status. `refused` is the number of refused
    /// requests that this line represents.
    pub(crate) fn log_refused_status(mut self, status: u16, refused: u64) {
        self.refused = Some(refused);
        self.log_status(status);
    }

    /// Logs an action without an HTTP status that was refused for this reason. `refused` is the
    /// number of refused requests that this line represents.
    pub(crate) fn log_refusal(mut self, reason: String, refused: u64) {
        self.refused = Some(refused);
        self.outcome = Some(reason);
        self.log();
    }

    /// Begins an action, which is logged even if its future is dropped.
    pub(crate) fn begin(self) -> RunningAction {
        RunningAction(self)
    }

    fn log(&self) {
        let Self {
            action,
            caller,
            peer,
            certificate,
            parameters,
            status,
            outcome,
            refused,
            early_end: _,
        } = self;
        tracing::info!(
            target: AUDIT_TARGET,
            action,
            caller,
            peer,
            certificate,
            parameters = parameters.0.get(),
            status,
            refused,
            outcome,
            "admin action"
        );
    }
}

/// An action that was admitted. The action is logged when this value is dropped. If the caller
/// disconnects during the action, the future that handles the action is dropped, but the action may
/// still run to its end.
#[must_use]
pub(crate) struct RunningAction(Action);

impl RunningAction {
    /// The place where the handler of the action records the parameters.
    pub(crate) fn parameters(&self) -> ActionParameters {
        self.0.parameters.clone()
    }

    /// Logs the action with the HTTP status of the response.
    pub(crate) fn end_with_status(mut self, status: u16) {
        self.0.status = Some(status);
    }

    /// Logs the action with its outcome.
    pub(crate) fn end(mut self, outcome: &str) {
        self.0.outcome = Some(outcome.to_owned());
    }
}

impl Drop for RunningAction {
    fn drop(&mut self) {
        if self.0.status.is_none() && self.0.outcome.is_none() {
            let outcome = match std::thread::panicking() {
                true => "the handler panicked",
                false => self.0.early_end,
            };
            self.0.outcome = Some(outcome.to_owned());
        }
        self.0.log();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_long_parameters_is_recorded() {
        let parameters = ActionParameters::default();
        parameters.record(format!("x{}", "é".repeat(MAX_PARAMETERS_BYTES)));
        let text = parameters.0.get().unwrap();
        // The limit is in the middle of a character, so this character is left out.
        let kept = (MAX_PARAMETERS_BYTES - 1) / 2;
        assert_eq!(*text, format!("x{}…", "é".repeat(kept)));
    }
}
