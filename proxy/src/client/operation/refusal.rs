//! The end of an operation that reaches no server: an error reply, or a closed client connection.

use std::pin::pin;

use tokio::time::{Instant, sleep_until};

use super::{
    context::{AttemptEnd, Operation},
    failure::Failure,
    routing::{CheckOutFailure, PAUSE_AFTER_FAILURE},
};
use crate::{client::client_end::ClientEnd, observe::Observation, topology::TopologyType};
use seawall_command::Class;
use seawall_stats::Outcome;

impl Operation<'_> {
    /// Ends an operation that got no permit or no connection. Delays an overload error until the
    /// operation has lasted for `wait_queue_timeout`, or for its own time limit if that is shorter.
    pub(super) async fn refuse(
        &self,
        end: &mut ClientEnd<'_>,
        failure: CheckOutFailure,
        observation: &Observation<'_>,
    ) -> AttemptEnd {
        let recorder = &self.shared.recorder;
        if let Some(ended) = self.end_at_time_limit(observation) {
            return ended;
        }
        let failure = match failure {
            CheckOutFailure::KeysRefused => return self.close_in_turn(end).await,
            CheckOutFailure::LoginRefused => {
                // A client that retries without a pause must not cause one refused login after
                // another.
                let until = Instant::now() + PAUSE_AFTER_FAILURE;
                if !self.hold_error(end, observation, until).await {
                    return AttemptEnd::Gone;
                }
                Failure::LoginRefused
            }
            CheckOutFailure::Unauthenticated => Failure::Unauthenticated,
            CheckOutFailure::NoServer if self.command.class == Class::KillCursors => {
                recorder.count_shed_operation("no_server");
                return self.none_killed(observation);
            }
            CheckOutFailure::NoServer => {
                recorder.count_shed_operation("no_server");
                self.no_server()
            }
            CheckOutFailure::Overload(overload) => {
                // The error is delayed even if the pool refused at once, because some drivers retry
                // without a pause.
                let until = observation.began() + self.shared.settings().wait_queue_timeout;
                if !self.hold_error(end, observation, until).await {
                    return AttemptEnd::Gone;
                }
                recorder.count_shed_operation(overload.as_str());
                Failure::Overload
            }
        };
        AttemptEnd::Error(self.error(&failure), Outcome::Refused)
    }

    /// The end of an operation whose own time limit is over. `None` if the operation has no time
    /// limit, or if the limit is not over yet.
    pub(super) fn end_at_time_limit(&self, observation: &Observation<'_>) -> Option<AttemptEnd> {
        let limit = self.time_limit()?;
        if observation.began().elapsed() < limit {
            return None;
        }
        self.shared.recorder.count_shed_operation("max_time_ms");
        let error = self.error(&Failure::TimeLimit);
        Some(AttemptEnd::Error(error, Outcome::Refused))
    }

    /// Waits until `until`, but not longer than the operation's own time limit. Returns false if
    /// the client disconnects first.
    async fn hold_error(
        &self,
        end: &mut ClientEnd<'_>,
        observation: &Observation<'_>,
        until: Instant,
    ) -> bool {
        let until = self.within_time_limit(observation, until);
        end.unless_gone(pin!(sleep_until(until))).await.is_some()
    }

    fn no_server(&self) -> Failure {
        let snapshot = self.shared.routing.topology.snapshot();
        let description = &snapshot.description;
        Failure::NoServer {
            mode: self.read_preference().mode,
            set_name: description.set_name.clone(),
            has_primary: description.topology_type == TopologyType::ReplicaSetWithPrimary,
        }
    }

    /// Ends the operation and closes the client connection, because a server refused the keys of
    /// the client's user. First waits for the client's turn: closes are spread over time, so that
    /// they cause no reconnect storm.
    pub(super) async fn close_in_turn(&self, end: &mut ClientEnd<'_>) -> AttemptEnd {
        let turns = &self.shared.limits.closes().refused_keys;
        let turn = turns.take(self.sharer, || true);
        match end.unless_gone(pin!(turn)).await {
            Some(_) => AttemptEnd::Close(Outcome::Refused),
            None => AttemptEnd::Gone,
        }
    }
}
