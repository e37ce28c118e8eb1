//! Tests of whole conversations: test vectors of the specifications, conversations of Seawall's
//! SCRAM client with Seawall's SCRAM server, and payloads that were changed in transit.

use proptest::prelude::*;

use super::*;

/// A test vector: a conversation that is printed in a specification.
struct Vector {
    mechanism: Mechanism,
    client_first: &'static str,
    server_first: &'static str,
    client_final: &'static str,
    server_final: &'static str,
    derived: DerivedKeys,
}

impl Vector {
    /// The example of RFC 5802, section 5. Unlike in MongoDB, the password is not hashed with MD5
    /// first.
    fn rfc_5802() -> Self {
        let salt = [65, 37, 194, 71, 228, 58, 177, 233, 60, 109, 255, 118];
        let mechanism = Mechanism::ScramSha1;
        Self {
            mechanism,
            client_first: "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
            server_first: "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
            client_final: "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,\
                           p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
            server_final: "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
            derived: DerivedKeys::from_prepared(mechanism, b"pencil", &salt, 4_096).unwrap(),
        }
    }

    /// The example of MongoDB's authentication specification.
    fn mongodb_sha1() -> Self {
        Self::from_password(
            Mechanism::ScramSha1,
            "n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
            "r=fyko+d2lbbFgONRv9qkxdawLHo+Vgk7qvUOKUwuWLIWg4l/9SraGMHEE,\
             s=rQ9ZY3MntBeuP3E1TDVC4w==,i=10000",
            "c=biws,r=fyko+d2lbbFgONRv9qkxdawLHo+Vgk7qvUOKUwuWLIWg4l/9SraGMHEE,\
             p=MC2T8BvbmWRckDw8oWl5IVghwCY=",
            "v=UMWeI25JD1yNYZRMpZ4VHvhZ9e0=",
        )
    }

    /// The example of RFC 7677, section 3.
    fn rfc_7677() -> Self {
        Self::from_password(
            Mechanism::ScramSha256,
            "n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
             s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
             p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        )
    }

    fn from_password(
        mechanism: Mechanism,
        client_first: &'static str,
        server_first: &'static str,
        client_final: &'static str,
        server_final: &'static str,
    ) -> Self {
        let (client, _) = ClientConversation::start(mechanism, "user", nonce_of(client_first));
        let (_, _, derived) = client
            .respond_with_password(server_first.as_bytes(), "pencil")
            .unwrap();
        Self {
            mechanism,
            client_first,
            server_first,
            client_final,
            server_final,
            derived,
        }
    }

    fn all() -> [Self; 3] {
        [Self::rfc_5802(), Self::mongodb_sha1(), Self::rfc_7677()]
    }

    fn client_nonce(&self) -> &'static str {
        nonce_of(self.client_first)
    }

    fn server_nonce(&self) -> &'static str {
        let combined = self
            .server_first
            .split(',')
            .next()
            .unwrap()
            .strip_prefix("r=")
            .unwrap();
        combined.strip_prefix(self.client_nonce()).unwrap()
    }

    fn server(&self) -> ServerConversation {
        let client_first = ClientFirst::parse(self.client_first.as_bytes()).unwrap();
        ServerConversation::start(client_first, &self.derived.keys, self.server_nonce()).0
    }

    fn client(&self) -> ClientConversation {
        ClientConversation::start(self.mechanism, "user", self.client_nonce()).0
    }

    fn carried(&self) -> CarriedConversation {
        let client_first = ClientFirst::parse(self.client_first.as_bytes()).unwrap();
        CarriedConversation::new(self.mechanism, client_first)
    }

    fn carried_to_the_end(&self) -> CarriedOutcome {
        self.carried()
            .server_first(self.server_first.as_bytes())
            .and_then(|carried| carried.client_final(self.client_final.as_bytes()))
            .and_then(|carried| carried.server_final(self.server_final.as_bytes()))
            .unwrap()
    }
}

fn nonce_of(client_first: &'static str) -> &'static str {
    client_first.split_once("r=").unwrap().1
}

fn other_keys(mechanism: Mechanism) -> DerivedKeys {
    derive_from_password(mechanism, "other", "eraser", b"another salt", 4_096).unwrap()
}

/// Keys of another password, with the same salt and iteration count as `keys`. A dishonest server
/// might return such keys.
fn forged_keys(keys: &ScramKeys) -> DerivedKeys {
    derive_from_password(
        keys.mechanism(),
        "user",
        "forged",
        keys.salt(),
        keys.iterations(),
    )
    .unwrap()
}

/// Returns copies of `payload`. In each copy, one character of the last attribute's base64 value is
/// replaced, and the result is again valid base64. There is one copy for each character of the
/// value except the last.
fn tampered(payload: &str) -> Vec<String> {
    let start = payload.rfind(['p', 'v']).unwrap() + 2;
    let (head, value) = payload.split_at(start);
    let last = value.trim_end_matches('=').len() - 1;
    (0..last)
        .map(|index| {
            let mut value: Vec<char> = value.chars().collect();
            value[index] = if value[index] == 'A' { 'B' } else { 'A' };
            format!("{head}{}", value.into_iter().collect::<String>())
        })
        .collect()
}

#[test]
fn server_conversation_matches_the_test_vectors() {
    for vector in Vector::all() {
        let client_first = ClientFirst::parse(vector.client_first.as_bytes()).unwrap();
        let keys = &vector.derived.keys;
        let (server, payload) =
            ServerConversation::start(client_first, keys, vector.server_nonce());
        assert_eq!(payload, vector.server_first.as_bytes());
        let verified = server.verify(vector.client_final.as_bytes()).unwrap();
        assert_eq!(verified.server_final, vector.server_final.as_bytes());
        assert_eq!(verified.client_key, vector.derived.client_key);
    }
}

#[test]
fn client_conversation_matches_the_test_vectors() {
    for vector in Vector::all() {
        let DerivedKeys { client_key, keys } = &vector.derived;
        let (client, payload) =
            ClientConversation::start(vector.mechanism, "user", vector.client_nonce());
        assert_eq!(payload, vector.client_first.as_bytes());
        let (client, payload) = client
            .respond(vector.server_first.as_bytes(), client_key, keys)
            .unwrap();
        assert_eq!(payload, vector.client_final.as_bytes());
        client.finish(vector.server_final.as_bytes()).unwrap();
    }
}

#[test]
fn client_conversation_with_a_password_matches_the_test_vectors() {
    for vector in [Vector::mongodb_sha1(), Vector::rfc_7677()] {
        let (client, payload, derived) = vector
            .client()
            .respond_with_password(vector.server_first.as_bytes(), "pencil")
            .unwrap();
        assert_eq!(payload, vector.client_final.as_bytes());
        assert_eq!(derived, vector.derived);
        client.finish(vector.server_final.as_bytes()).unwrap();
    }
}

/// Seawall forwards the first login of a user to a server and observes the SCRAM messages.
#[test]
fn seawall_recovers_the_client_key_from_a_login_that_it_forwarded_to_a_server() {
    for vector in Vector::all() {
        let outcome = vector.carried_to_the_end();
        assert_eq!(
            outcome.prove(&vector.derived.keys).unwrap(),
            vector.derived.client_key
        );
    }
}

#[test]
fn a_tampered_proof_is_refused() {
    for vector in Vector::all() {
        for client_final in tampered(vector.client_final) {
            let error = vector.server().verify(client_final.as_bytes()).unwrap_err();
            assert_eq!(error, ScramError::ProofMismatch, "{client_final}");
        }
    }
}

#[test]
fn a_tampered_server_signature_is_refused() {
    for vector in Vector::all() {
        let DerivedKeys { client_key, keys } = &vector.derived;
        for server_final in tampered(vector.server_final) {
            let (client, _) = vector
                .client()
                .respond(vector.server_first.as_bytes(), client_key, keys)
                .unwrap();
            let error = client.finish(server_final.as_bytes()).unwrap_err();
            assert_eq!(error, ScramError::ServerSignatureMismatch, "{server_final}");

            let carried = vector
                .carried()
                .server_first(vector.server_first.as_bytes())
                .and_then(|carried| carried.client_final(vector.client_final.as_bytes()))
                .and_then(|carried| carried.server_final(server_final.as_bytes()))
                .unwrap();
            assert_eq!(
                carried.prove(keys).unwrap_err(),
                ScramError::ServerSignatureMismatch
            );
        }
    }
}

/// Seawall checks the proof of a forwarded login against the keys of the user, although the server
/// has already accepted the proof.
#[test]
fn seawall_refuses_a_changed_proof_in_a_login_that_it_forwarded_to_a_server() {
    for vector in Vector::all() {
        for client_final in tampered(vector.client_final) {
            let carried = vector
                .carried()
                .server_first(vector.server_first.as_bytes())
                .and_then(|carried| carried.client_final(client_final.as_bytes()))
                .and_then(|carried| carried.server_final(vector.server_final.as_bytes()))
                .unwrap();
            let error = carried.prove(&vector.derived.keys).unwrap_err();
            assert_eq!(error, ScramError::KeysDisagree);
        }
    }
}

#[test]
fn a_proof_cannot_be_replayed_into_another_conversation() {
    for vector in Vector::all() {
        let client_first = ClientFirst::parse(vector.client_first.as_bytes()).unwrap();
        let (server, _) =
            ServerConversation::start(client_first, &vector.derived.keys, "anotherNonce");
        let message = ScramMessage::ClientFinal;
        let error = server.verify(vector.client_final.as_bytes()).unwrap_err();
        assert_eq!(error, ScramError::NonceMismatch { message });

        // If the nonce is replaced by the nonce of the new conversation, the proof does not match.
        let client_first = ClientFirst::parse(vector.client_first.as_bytes()).unwrap();
        let (server, _) =
            ServerConversation::start(client_first, &vector.derived.keys, "anotherNonce");
        let client_final = vector
            .client_final
            .replace(vector.server_nonce(), "anotherNonce");
        let error = server.verify(client_final.as_bytes()).unwrap_err();
        assert_eq!(error, ScramError::ProofMismatch);
    }
}

#[test]
fn a_changed_channel_binding_is_refused() {
    for vector in Vector::all() {
        let client_final = vector.client_final.replace("c=biws", "c=eSws");
        let error = vector.server().verify(client_final.as_bytes()).unwrap_err();
        assert_eq!(error, ScramError::ChannelBindingMismatch);
        let carried = vector
            .carried()
            .server_first(vector.server_first.as_bytes())
            .unwrap();
        let error = carried.client_final(client_final.as_bytes()).unwrap_err();
        assert_eq!(error, ScramError::ChannelBindingMismatch);
    }
}

#[test]
fn combined_nonce_must_begin_with_the_client_nonce() {
    let message = ScramMessage::ServerFirst;
    for vector in Vector::all() {
        let DerivedKeys { client_key, keys } = &vector.derived;
        let server_first = vector.server_first.replacen("r=", "r=x", 1);
        let server_first = server_first.as_bytes();
        let mismatch = ScramError::NonceMismatch { message };
        let error = vector
            .client()
            .respond(server_first, client_key, keys)
            .unwrap_err();
        assert_eq!(error, mismatch);
        let error = vector
            .client()
            .respond_with_password(server_first, "pencil")
            .unwrap_err();
        assert_eq!(error, mismatch);
        assert_eq!(
            vector.carried().server_first(server_first).unwrap_err(),
            mismatch
        );
    }
}

#[test]
fn client_sends_no_proof_if_its_keys_do_not_fit_the_salt_and_iteration_count_of_the_server() {
    for vector in Vector::all() {
        let DerivedKeys { client_key, keys } = &vector.derived;
        let respond = |client_key, keys| {
            vector
                .client()
                .respond(vector.server_first.as_bytes(), client_key, keys)
                .unwrap_err()
        };
        let other = other_keys(vector.mechanism);
        assert_eq!(
            respond(&other.client_key, &other.keys),
            ScramError::KeysOutdated
        );
        assert_eq!(respond(&other.client_key, keys), ScramError::KeysOutdated);
        assert_eq!(respond(client_key, &other.keys), ScramError::KeysOutdated);

        let iterations = keys.iterations() + 1;
        let more = ScramKeys::new(
            keys.salt().to_vec(),
            iterations,
            keys.stored_key().clone(),
            keys.server_key().clone(),
        );
        assert_eq!(
            respond(client_key, &more.unwrap()),
            ScramError::KeysOutdated
        );
    }
}

#[test]
fn conversations_refuse_keys_of_another_mechanism() {
    let sha1 = Vector::rfc_5802();
    let sha256 = Vector::rfc_7677();
    let respond = |client_key, keys| {
        sha1.client()
            .respond(sha1.server_first.as_bytes(), client_key, keys)
            .unwrap_err()
    };
    let mismatch = ScramError::MechanismMismatch;
    assert_eq!(
        respond(&sha256.derived.client_key, &sha256.derived.keys),
        mismatch
    );
    assert_eq!(
        respond(&sha1.derived.client_key, &sha256.derived.keys),
        mismatch
    );
    assert_eq!(
        respond(&sha256.derived.client_key, &sha1.derived.keys),
        mismatch
    );
    assert_eq!(
        sha1.carried_to_the_end()
            .prove(&sha256.derived.keys)
            .unwrap_err(),
        mismatch
    );
}

/// Seawall forwards the first login of a user to a server, and reads the keys of the user there. It
/// checks these keys against the SCRAM messages of the login.
#[test]
fn seawall_refuses_keys_that_do_not_fit_the_proof_and_signature_of_a_forwarded_login() {
    for vector in Vector::all() {
        let outcome = vector.carried_to_the_end();
        let keys = &vector.derived.keys;
        let other = other_keys(vector.mechanism);
        assert_eq!(
            outcome.prove(&other.keys).unwrap_err(),
            ScramError::KeysOutdated
        );

        let forged = forged_keys(keys).keys;
        assert_eq!(
            outcome.prove(&forged).unwrap_err(),
            ScramError::KeysDisagree
        );

        let half_forged = ScramKeys::new(
            keys.salt().to_vec(),
            keys.iterations(),
            keys.stored_key().clone(),
            forged.server_key().clone(),
        );
        let error = outcome.prove(&half_forged.unwrap()).unwrap_err();
        assert_eq!(error, ScramError::ServerSignatureMismatch);

        // After a failed attempt, the right keys are still accepted.
        assert!(outcome.prove(keys).is_ok());
    }
}

#[test]
fn a_wrong_password_is_refused() {
    for vector in [Vector::mongodb_sha1(), Vector::rfc_7677()] {
        let (_, payload, _) = vector
            .client()
            .respond_with_password(vector.server_first.as_bytes(), "pencil ")
            .unwrap();
        let error = vector.server().verify(&payload).unwrap_err();
        assert_eq!(error, ScramError::ProofMismatch);
    }
}

#[test]
fn client_refuses_a_server_that_does_not_know_the_server_key() {
    let vector = Vector::rfc_7677();
    let DerivedKeys { client_key, keys } = &vector.derived;
    let (client, payload) = vector
        .client()
        .respond(vector.server_first.as_bytes(), client_key, keys)
        .unwrap();
    let stolen = ScramKeys::new(
        keys.salt().to_vec(),
        keys.iterations(),
        keys.stored_key().clone(),
        forged_keys(keys).keys.server_key().clone(),
    );
    let client_first = ClientFirst::parse(vector.client_first.as_bytes()).unwrap();
    let (thief, _) =
        ServerConversation::start(client_first, &stolen.unwrap(), vector.server_nonce());
    let server_final = thief.verify(&payload).unwrap().server_final;
    let error = client.finish(&server_final).unwrap_err();
    assert_eq!(error, ScramError::ServerSignatureMismatch);
}

#[test]
fn proof_is_verified_against_the_gs2_header_that_the_client_sent() {
    let derived =
        derive_from_password(Mechanism::ScramSha256, "a=b", "pencil", b"salt", 4_096).unwrap();
    let DerivedKeys { client_key, keys } = &derived;
    for (header, channel_binding) in [
        ("n,,", "biws"),
        ("y,,", "eSws"),
        ("n,a=a=b,", "bixhPWE9Yiw="),
    ] {
        let bare = "n=a=3Db,r=abcd,x=extension";
        let client_first = ClientFirst::parse(format!("{header}{bare}").as_bytes()).unwrap();
        assert_eq!(client_first.bare(), bare.as_bytes());
        let (server, server_first) = ServerConversation::start(client_first, keys, "WXYZ");
        let server_first = String::from_utf8(server_first).unwrap();
        let without_proof = format!("c={channel_binding},r=abcdWXYZ,y=extension");
        let auth_message = format!("{bare},{server_first},{without_proof}");
        let proof = client_key.proof(keys.stored_key(), &auth_message);
        let proof = payload::encode(proof.as_bytes());
        let client_final = format!("{without_proof},p={proof}");
        let verified = server.verify(client_final.as_bytes()).unwrap();
        assert_eq!(verified.client_key, *client_key);
    }
}

#[test]
#[should_panic(expected = "Seawall's nonces are printable")]
fn server_nonce_with_a_comma_panics() {
    let vector = Vector::rfc_7677();
    let client_first = ClientFirst::parse(vector.client_first.as_bytes()).unwrap();
    ServerConversation::start(client_first, &vector.derived.keys, "a,b");
}

proptest! {
    // The number of cases is low, because each case needs thousands of PBKDF2 rounds.
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_client_can_log_in_with_keys_or_with_a_password(
        is_sha1: bool,
        user in "[^\0]{1,12}",
        password in "[ -~äßé]{1,12}",
        salt in proptest::collection::vec(any::<u8>(), 1..32),
        client_nonce in "[!-+\\--~]{4,40}",
        server_nonce in "[!-+\\--~]{1,40}",
    ) {
        let mechanism = if is_sha1 { Mechanism::ScramSha1 } else { Mechanism::ScramSha256 };
        let derived = derive_from_password(mechanism, &user, &password, &salt, 4_096).unwrap();
        let DerivedKeys { client_key, keys } = &derived;

        let (client, client_first) = ClientConversation::start(mechanism, &user, &client_nonce);
        let client_first = ClientFirst::parse(&client_first).unwrap();
        prop_assert_eq!(client_first.user(), &user);
        let carried = CarriedConversation::new(mechanism, client_first.clone());
        let (server, server_first) = ServerConversation::start(client_first, keys, &server_nonce);
        let carried = carried.server_first(&server_first).unwrap();

        let (client, client_final) = if user.len().is_multiple_of(2) {
            client.respond(&server_first, client_key, keys).unwrap()
        } else {
            let (client, client_final, again) =
                client.respond_with_password(&server_first, &password).unwrap();
            prop_assert_eq!(&again, &derived);
            (client, client_final)
        };
        let carried = carried.client_final(&client_final).unwrap();
        let verified = server.verify(&client_final).unwrap();
        let carried = carried.server_final(&verified.server_final).unwrap();
        client.finish(&verified.server_final).unwrap();

        prop_assert_eq!(&verified.client_key, client_key);
        prop_assert_eq!(&carried.prove(keys).unwrap(), client_key);
    }

    #[test]
    fn conversations_with_arbitrary_payloads_never_panic(
        payload in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let vector = Vector::rfc_5802();
        let DerivedKeys { client_key, keys } = &vector.derived;
        drop(vector.server().verify(&payload));
        drop(vector.client().respond(&payload, client_key, keys));
        drop(vector.carried().server_first(&payload));
    }
}
