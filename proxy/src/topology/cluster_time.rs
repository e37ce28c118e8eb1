//! The latest cluster time that servers have sent. Seawall sends it to clients in replies to
//! `hello`, as a mongos does.
//!
//! Source:
//! <https://github.com/mongodb/specifications/blob/master/source/sessions/driver-sessions.md>
//! ("Gossipping the cluster time").

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

/// A `$clusterTime` from a server. Seawall accepts no `$clusterTime` from clients, because a client
/// could send an invalid time.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterTime {
    document: RawDocumentBuf,
    /// Seconds and increment of the time, for comparison.
    at: (u32, u32),
    key_id: i64,
}

impl ClusterTime {
    /// The cluster time in a server's reply; `None` if the reply contains no valid cluster time.
    pub(crate) fn of(reply: &RawDocument) -> Option<Self> {
        let document = reply.get_document("$clusterTime").ok()?;
        let at = document.get_timestamp("clusterTime").ok()?;
        let signature = document.get_document("signature").ok()?;
        let key_id = match signature.get("keyId").ok()?? {
            RawBsonRef::Int64(id) => id,
            RawBsonRef::Int32(id) => i64::from(id),
            _ => return None,
        };
        Some(Self {
            document: document.to_owned(),
            at: (at.time, at.increment),
            key_id,
        })
    }

    /// Replaces `latest` by `seen` if `seen` is later, or if `latest` is `None`.
    pub(super) fn advance(latest: &mut Option<Self>, seen: Option<Self>) {
        let is_later = |seen: &Self| latest.as_ref().is_none_or(|latest| latest.at < seen.at);
        if let Some(seen) = seen.filter(is_later) {
            *latest = Some(seen);
        }
    }

    /// True if a server has signed the time. Servers without access control send a dummy signature
    /// and accept it from clients. Servers with access control refuse the dummy signature.
    pub(crate) fn is_signed(&self) -> bool {
        self.key_id != 0
    }

    /// The unchanged `$clusterTime` document of the server.
    pub fn document(&self) -> &RawDocument {
        &self.document
    }
}

#[cfg(test)]
mod tests {
    use bson::{Binary, Timestamp, rawdoc, spec::BinarySubtype};

    use super::*;

    fn reply(time: u32, increment: u32, key_id: i64) -> RawDocumentBuf {
        let hash = Binary {
            subtype: BinarySubtype::Generic,
            bytes: vec![0; 20],
        };
        rawdoc! {
            "ok": 1.0,
            "$clusterTime": {
                "clusterTime": Timestamp { time, increment },
                "signature": { "hash": hash, "keyId": key_id },
            },
        }
    }

    #[test]
    fn cluster_times_may_arrive_in_any_order_and_the_latest_one_is_kept() {
        let mut latest = None;
        for (time, increment) in [(5, 1), (4, 9), (5, 2), (5, 1)] {
            ClusterTime::advance(&mut latest, ClusterTime::of(&reply(time, increment, 7)));
        }
        ClusterTime::advance(&mut latest, ClusterTime::of(&rawdoc! { "ok": 1.0 }));
        let latest = latest.unwrap();
        assert_eq!(latest.at, (5, 2));
        let sent = reply(5, 2, 7);
        assert_eq!(
            latest.document(),
            sent.get_document("$clusterTime").unwrap()
        );
    }

    /// Servers without access control send a dummy signature with the `keyId` 0.
    #[test]
    fn a_cluster_time_with_a_dummy_signature_does_not_count_as_signed() {
        assert!(ClusterTime::of(&reply(1, 1, 7)).unwrap().is_signed());
        assert!(!ClusterTime::of(&reply(1, 1, 0)).unwrap().is_signed());
        let malformed = rawdoc! { "$clusterTime": { "clusterTime": 1 } };
        assert_eq!(ClusterTime::of(&malformed), None);
    }
}
