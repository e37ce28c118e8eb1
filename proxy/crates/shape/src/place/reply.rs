//! How redaction treats the elements of replies: which elements are values of users.

use super::{Inner, Treatment, inside_array, inside_document, kept_unless, option};
use crate::bson::Value;
use seawall_command::ReplyForm;

/// The kind of a document or array in a reply. The kind decides how redaction treats the elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReplyPart {
    /// The top-level document of the reply.
    Body,
    /// `cursor`.
    Cursor,
    /// An array of errors, or of the results of a `bulkWrite`.
    Errors,
    /// One error, or one result of a `bulkWrite`.
    Error,
    /// `lastErrorObject` of a `findAndModify`.
    LastError,
    /// `upserted` of an `update`: an array of documents with an index and an `_id`.
    Upserted,
    /// One element of `upserted`.
    UpsertedOne,
}

impl ReplyPart {
    pub(super) fn treatment(self, form: ReplyForm, name: &[u8], value: &Value<'_>) -> Treatment {
        let inside = |part| Inner::Reply(form, part);
        match (self, name) {
            (_, b"errmsg") => Treatment::Remove,
            (Self::Errors, _) => inside_document(value, inside(Self::Error)),
            (Self::Upserted, _) => inside_document(value, inside(Self::UpsertedOne)),
            (Self::Body, b"cursor") => inside_document(value, inside(Self::Cursor)),
            (Self::Body, b"writeErrors") => inside_array(value, inside(Self::Errors)),
            (Self::Body, b"writeConcernError") => inside_document(value, inside(Self::Error)),
            (Self::Body, b"lastErrorObject") => inside_document(value, inside(Self::LastError)),
            (Self::Body, b"upserted") => inside_array(value, inside(Self::Upserted)),
            // `startSession` returns the id of the new session.
            (Self::Body, b"id") => {
                inside_document(value, Inner::Option(option::OptionPart::Session))
            }
            (Self::Cursor, b"firstBatch" | b"nextBatch") if form == ReplyForm::BulkWrite => {
                inside_array(value, inside(Self::Errors))
            }
            (Self::Body | Self::Error, b"keyPattern") => inside_document(value, Inner::Keys),
            (_, name) => kept_unless(!self.keeps(name)),
        }
    }

    /// True for fields without a value of a user, such as counts, error codes, cursor ids and
    /// times. The content of all other fields counts as values of users.
    fn keeps(self, name: &[u8]) -> bool {
        match self {
            Self::Body => KEPT_FIELDS.contains(&name),
            Self::Cursor => matches!(
                name,
                b"id" | b"ns" | b"partialResultsReturned" | b"invalidated" | b"atClusterTime"
            ),
            Self::Error => matches!(
                name,
                b"ok" | b"index" | b"idx" | b"code" | b"codeName" | b"n" | b"nModified"
            ),
            Self::LastError => matches!(name, b"n" | b"updatedExisting"),
            Self::UpsertedOne => name == b"index",
            Self::Errors | Self::Upserted => false,
        }
    }
}

const KEPT_FIELDS: [&[u8]; 27] = [
    b"$clusterTime",
    b"$configTime",
    b"$gleStats",
    b"code",
    b"codeName",
    b"createdCollectionAutomatically",
    b"cursorsAlive",
    b"cursorsKilled",
    b"cursorsNotFound",
    b"cursorsUnknown",
    b"electionId",
    b"errorLabels",
    b"n",
    b"nDeleted",
    b"nErrors",
    b"nIndexesWas",
    b"nInserted",
    b"nMatched",
    b"nModified",
    b"nUpserted",
    b"numIndexesAfter",
    b"numIndexesBefore",
    b"ok",
    b"opTime",
    b"operationTime",
    b"recoveryToken",
    b"topologyVersion",
];
