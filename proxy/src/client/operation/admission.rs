//! The steps before an operation runs: checks the client's user, injects a configured fault, and
//! waits for a permit.

use std::pin::pin;

use tokio::time::{sleep, timeout_at};

use super::{
    context::{AttemptEnd, Operation},
    failure::Failure,
    routing::CheckOutFailure,
};
use crate::{
    client::{client_end::ClientEnd, fault::FaultEnd},
    limits::{OperationPermit, Operator},
    observe::Observation,
    pool::Overload,
};
use seawall_auth::IdentityStatus;
use seawall_command::ErrorReply;
use seawall_stats::Outcome;

impl Operation<'_> {
    /// Ends the operation if the client's user no longer exists, or if the user's
    /// `authenticationRestrictions` no longer permit the client. Closes the client connection if a
    /// server refused the user's keys, because the client has to log in again. `None` if the
    /// operation may continue.
    pub(super) async fn check_identity(&self, end: &mut ClientEnd<'_>) -> Option<AttemptEnd> {
        match self.identity.status() {
            IdentityStatus::Good if self.identity.permits(self.peer) => None,
            IdentityStatus::Good | IdentityStatus::Gone => {
                let error = self.error(&Failure::Unauthenticated);
                Some(AttemptEnd::Error(error, Outcome::Refused))
            }
            IdentityStatus::Refused => Some(self.close_in_turn(end).await),
        }
    }

    /// Applies the injected fault if it selects this operation. Returns how the operation ends;
    /// `None` if the operation continues.
    pub(super) async fn inject_fault(&self, end: &mut ClientEnd<'_>) -> Option<AttemptEnd> {
        let fault = self.shared.routing.fault.load_full()?;
        if !fault.selects(self.command) {
            return None;
        }
        self.shared.recorder.count_fault(fault.kind());
        if end.unless_gone(pin!(sleep(fault.delay))).await.is_none() {
            return Some(AttemptEnd::Gone);
        }
        match fault.end {
            FaultEnd::Continue => None,
            FaultEnd::Close => Some(AttemptEnd::Close(Outcome::Refused)),
            FaultEnd::Error(code) => {
                let error = ErrorReply::new(code, "injected by Seawall's [fault] section");
                Some(AttemptEnd::Error(error, Outcome::Refused))
            }
        }
    }

    /// Waits for a permit to run the operation (`limits.max_in_flight_operations`). The wait ends
    /// with an error at the operation's own time limit or after `wait_queue_timeout`. The wait for
    /// a connection has the same limits. `None` if the client has left.
    pub(super) async fn admit(
        &self,
        end: &mut ClientEnd<'_>,
        observation: &Observation<'_>,
    ) -> Option<Result<OperationPermit, CheckOutFailure>> {
        let permits = self.shared.limits.operations();
        let operator = Operator {
            user: self.identity.id().as_u64(),
            sharer: self.sharer,
            in_flight: self.identity.in_flight(),
            may_unblock_others: self.command.may_unblock_others(),
        };
        if let Some(permit) = permits.try_admit(operator) {
            return Some(Ok(permit));
        }
        let held_until = observation.began() + self.shared.settings().wait_queue_timeout;
        let until = self.within_time_limit(observation, held_until);
        // The future is boxed, so that the future of every operation stays small.
        let mut waiting = Box::pin(timeout_at(until, permits.admit(operator)));
        let admitted = end.unless_gone(waiting.as_mut()).await?;
        Some(admitted.map_err(|_| CheckOutFailure::Overload(Overload::TimedOut)))
    }
}
