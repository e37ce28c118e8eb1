//! Notices when another server becomes primary.

use std::time::SystemTime;

/// Tracks which server is the primary of the deployment.
#[derive(Debug, Default)]
pub(super) struct PrimaryWatch {
    /// The address of the last known primary; `None` before the first primary.
    known: Option<String>,
    /// When the last known primary was lost; `None` while there is a primary.
    lost_at: Option<SystemTime>,
}

/// A failover: another server has become primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failover {
    /// When the former primary was lost.
    pub(super) lost_at: SystemTime,
    /// The address of the former primary.
    pub(super) from: String,
    /// The address of the new primary.
    pub(super) to: String,
}

impl PrimaryWatch {
    /// Records the primary at `now`; `primary` is `None` if the deployment has no primary. Returns
    /// the failover if another server has become primary.
    pub(super) fn see(&mut self, primary: Option<String>, now: SystemTime) -> Option<Failover> {
        let Some(primary) = primary else {
            if self.known.is_some() {
                self.lost_at.get_or_insert(now);
            }
            return None;
        };
        let lost_at = self.lost_at.take().unwrap_or(now);
        let from = self.known.replace(primary.clone())?;
        (from != primary).then_some(Failover {
            lost_at,
            from,
            to: primary,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_failover_lasts_from_the_loss_of_the_primary_until_another_server_is_primary() {
        let mut watch = PrimaryWatch::default();
        let mut see = |second, primary: Option<&str>| {
            let now = UNIX_EPOCH + Duration::from_secs(second);
            watch.see(primary.map(str::to_owned), now)
        };
        assert_eq!(see(1, None), None);
        assert_eq!(see(2, Some("a:1")), None);
        assert_eq!(see(3, None), None);
        assert_eq!(see(4, None), None);
        let failover = |lost_at, from: &str, to: &str| {
            Some(Failover {
                lost_at: UNIX_EPOCH + Duration::from_secs(lost_at),
                from: from.to_owned(),
                to: to.to_owned(),
            })
        };
        assert_eq!(see(5, Some("b:1")), failover(3, "a:1", "b:1"));
        assert_eq!(see(6, Some("a:1")), failover(6, "b:1", "a:1"));
        // The return of the former primary is no failover.
        assert_eq!(see(7, None), None);
        assert_eq!(see(8, Some("a:1")), None);
    }
}
