//! The commands of a login at a server, and their replies. Their bytes are zeroed after use.

use std::ops::Deref;

use bson::{RawDocument, RawDocumentBuf, cstr, raw::RawBinaryRef, rawdoc, spec::BinarySubtype};
use zeroize::{Zeroize as _, Zeroizing};

use seawall_command::reports_server_failure;

/// Upper bound for the number of bytes that the element `payload` adds to a document, without the
/// payload itself.
const PAYLOAD_ELEMENT_BYTES: usize = 16;

/// A document that contains a SASL payload or keys. Its bytes are zeroed on drop.
pub struct SecretDocument(RawDocumentBuf);

impl SecretDocument {
    /// Appends a payload to a command. Memory for the whole command is allocated first, so that the
    /// append leaves no copy of the payload in a smaller, freed buffer.
    fn with_payload(command: RawDocumentBuf, payload: &[u8]) -> Self {
        let mut bytes = command.into_bytes();
        bytes.reserve(payload.len() + PAYLOAD_ELEMENT_BYTES);
        let mut command = RawDocumentBuf::from_bytes(bytes).unwrap_or_default();
        let payload = RawBinaryRef {
            subtype: BinarySubtype::Generic,
            bytes: payload,
        };
        command.append(cstr!("payload"), payload);
        Self(command)
    }

    fn wipe(&mut self) {
        std::mem::take(&mut self.0).into_bytes().zeroize();
    }
}

impl From<RawDocumentBuf> for SecretDocument {
    fn from(document: RawDocumentBuf) -> Self {
        Self(document)
    }
}

impl Deref for SecretDocument {
    type Target = RawDocument;

    fn deref(&self) -> &RawDocument {
        &self.0
    }
}

impl Drop for SecretDocument {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// Builds a `saslStart`. `field` is the name of the field for the user's database: `$db`, or `db`
/// inside a hello. `source` is the database.
pub fn sasl_start(
    mechanism: &str,
    (field, source): (&bson::raw::CStr, &str),
    client_first: &[u8],
) -> SecretDocument {
    let mut command = rawdoc! {
        "saslStart": 1,
        "mechanism": mechanism,
        "options": { "skipEmptyExchange": true },
    };
    command.append(field, source);
    SecretDocument::with_payload(command, client_first)
}

/// Builds a `saslContinue` for the user's database `source`.
pub fn sasl_continue(conversation_id: i32, source: &str, payload: &[u8]) -> SecretDocument {
    let command = rawdoc! {
        "saslContinue": 1,
        "conversationId": conversation_id,
        "$db": source,
    };
    SecretDocument::with_payload(command, payload)
}

/// Builds a `saslContinue` with an empty payload. `last` is the reply with the last payload of the
/// server. The server expects this command if `last` does not finish the login; otherwise the
/// result is `None`. Servers before 4.4 do not know `skipEmptyExchange` and authenticate the
/// connection only after this command.
pub fn empty_exchange(last: &RawDocument, source: &str) -> Option<SecretDocument> {
    let is_done = last.get_bool("done").unwrap_or(false);
    (!is_done).then(|| sasl_continue(conversation_id(last), source, &[]))
}

/// True if a server refuses a login by an error with this code: the user or the proof is wrong, or
/// the user cannot use the mechanism. The code for a wrong user or proof is usually 18. The code
/// for a mechanism that the user cannot use is usually 334, or 2 on servers before 4.4. Atlas sends
/// 8000 for a refused login. A code that reports a failure of the server says nothing about the
/// user.
pub fn refuses_login(code: i32) -> bool {
    !reports_server_failure(code)
}

/// The `conversationId` in a reply; 1 if there is none.
pub fn conversation_id(reply: &RawDocument) -> i32 {
    reply.get_i32("conversationId").unwrap_or(1)
}

/// The payload in a reply; empty if there is none.
pub fn payload(reply: &RawDocument) -> Zeroizing<Vec<u8>> {
    let payload = reply.get_binary("payload");
    Zeroizing::new(payload.map(|b| b.bytes.to_vec()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_code_means_a_refused_login_unless_it_reports_a_failure_of_the_server() {
        // 2 is BadValue, 18 AuthenticationFailed, 334 MechanismUnavailable, 8000 AtlasError.
        for code in [2, 18, 334, 8000] {
            assert!(refuses_login(code), "{code}");
        }
        for code in [6, 7, 50, 89, 91, 189, 202, 262, 9001, 10107, 11600] {
            assert!(!refuses_login(code), "{code}");
        }
        // Overload of the server: 433 is AdmissionQueueOverflow, 449 RateLimitExceeded, 450
        // PooledConnectionAcquisitionRejected, 462 IngressRequestRateLimitExceeded, 463
        // IngressOperationRateLimitExceeded, 473 InterruptedDueToOverload.
        for code in [433, 449, 450, 462, 463, 473] {
            assert!(!refuses_login(code), "{code}");
        }
        // A failure between a mongos and its config servers: 90 is CallbackCanceled, 134
        // ReadConcernMajorityNotAvailableYet, 145 PooledConnectionsDropped, 149 NoConfigPrimary,
        // 290 TransactionExceededLifetimeLimitSeconds, 317 ConnectionPoolExpired, 365
        // TemporarilyUnavailable, 402 ResourceExhausted, 407
        // PooledConnectionAcquisitionExceededTimeLimit, 56846 ConfigServerUnreachable, 91331
        // RetriableRemoteCommandFailure.
        for code in [90, 134, 145, 149, 290, 317, 365, 402, 407, 56_846, 91_331] {
            assert!(!refuses_login(code), "{code}");
        }
    }

    #[test]
    fn empty_sasl_exchange_is_sent_only_if_the_server_has_not_finished_the_login() {
        let last = rawdoc! { "conversationId": 7, "done": false, "ok": 1.0 };
        let command = empty_exchange(&last, "source").unwrap();
        assert_eq!(command.get_i32("conversationId").ok(), Some(7));
        assert_eq!(command.get_str("$db").ok(), Some("source"));
        assert!(payload(&command).is_empty());
        let done = rawdoc! { "conversationId": 7, "done": true, "ok": 1.0 };
        assert!(empty_exchange(&done, "source").is_none());
    }

    #[test]
    fn sasl_commands_contain_their_payload_and_database() {
        let sent = [7; 300];
        let start = sasl_start("SCRAM-SHA-256", (cstr!("db"), "source"), &sent);
        assert_eq!(
            start.iter().next().unwrap().unwrap().0.as_str(),
            "saslStart"
        );
        assert_eq!(start.get_str("db").ok(), Some("source"));
        let next = sasl_continue(7, "source", &sent);
        assert_eq!(
            next.iter().next().unwrap().unwrap().0.as_str(),
            "saslContinue"
        );
        assert_eq!(next.get_str("$db").ok(), Some("source"));
        for command in [start, next] {
            assert_eq!(payload(&command)[..], sent);
        }
    }

    #[test]
    fn a_wiped_secret_document_is_empty() {
        let mut command = sasl_continue(7, "source", b"proof");
        command.wipe();
        assert!(command.is_empty());
    }
}
