//! The searches for a connection that can be closed for another user, in a pass over many users.

/// The searches of `Inner::make_room` in one pass over many users. Each search examines all users.
/// During a pass, no operation begins or ends. So after a search has found that no user can
/// spare a connection, the pass needs no further search for an operation of the same kind.
#[derive(Debug, Default)]
pub(super) struct RoomSearches {
    /// True if no user can spare a connection for an ordinary operation.
    has_failed: bool,
    /// True if no user can spare a connection for an urgent operation.
    has_failed_for_urgent: bool,
}

impl RoomSearches {
    pub(super) fn failure_mut(&mut self, is_urgent: bool) -> &mut bool {
        match is_urgent {
            true => &mut self.has_failed_for_urgent,
            false => &mut self.has_failed,
        }
    }
}
