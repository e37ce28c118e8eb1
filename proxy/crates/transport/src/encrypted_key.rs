//! Decrypts the private keys in a PEM file.

use std::fmt;

use pkcs8::{EncryptedPrivateKeyInfoRef, der::pem::LineEnding};
use x509_parser::pem::Pem as Section;
use zeroize::Zeroizing;

use crate::{Pem, PemError};

/// The label of an encrypted key in PKCS#8 (RFC 7468, section 11).
const ENCRYPTED: &str = "ENCRYPTED PRIVATE KEY";

/// The label of a key in PKCS#8 that is not encrypted (RFC 7468, section 10).
const DECRYPTED: &str = "PRIVATE KEY";

/// The header of an encrypted key in the traditional format of OpenSSL (RFC 1421, section 4.6.1.1).
/// Seawall cannot decrypt such a key.
const TRADITIONAL: &str = "Proc-Type: 4,ENCRYPTED";

/// The password that decrypts a private key. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPassword(Zeroizing<Vec<u8>>);

impl KeyPassword {
    /// Wraps a password.
    #[must_use]
    pub fn new(password: Vec<u8>) -> Self {
        Self(Zeroizing::new(password))
    }

    /// The bytes of the password. They must not appear in a log or an error.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for KeyPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyPassword(hidden)")
    }
}

impl Pem<'_> {
    /// True if the file has an encrypted key that [`Self::decrypt_keys`] can decrypt.
    #[must_use]
    pub fn has_encrypted_key(&self) -> bool {
        self.encrypted_keys().next().is_some()
    }

    /// True if the file has an encrypted key of any format.
    pub(crate) fn has_any_encrypted_key(&self) -> bool {
        self.has_encrypted_key() || self.content.contains(TRADITIONAL)
    }

    /// Returns the content of the file, followed by the decrypted form of each encrypted key
    /// (PKCS#8, RFC 5958). Without an encrypted key, the content is unchanged.
    ///
    /// # Errors
    /// [`PemError::NotDecrypted`], for example with a wrong password.
    pub fn decrypt_keys(&self, password: &KeyPassword) -> Result<Zeroizing<String>, PemError> {
        let not_decrypted = |source| PemError::NotDecrypted {
            path: self.path.to_owned(),
            source,
        };
        // A decrypted key is shorter than its encrypted form, so the string never grows. Growing
        // would leave a copy of a key in memory that is not erased.
        let capacity = self.content.len().saturating_mul(2);
        let mut content = Zeroizing::new(String::with_capacity(capacity));
        content.push_str(self.content);
        for section in self.encrypted_keys() {
            let key = EncryptedPrivateKeyInfoRef::try_from(section.contents.as_slice())
                .and_then(|encrypted| encrypted.decrypt(password.expose()))
                .map_err(not_decrypted)?;
            let pem = key.to_pem(DECRYPTED, LineEnding::LF);
            content.push('\n');
            content.push_str(&pem.map_err(|error| not_decrypted(error.into()))?);
        }
        Ok(content)
    }

    fn encrypted_keys(&self) -> impl Iterator<Item = Section> {
        Section::iter_from_buffer(self.content.as_bytes())
            .filter_map(Result::ok)
            .filter(|section| section.label == ENCRYPTED)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A key of P-256 that OpenSSL 3 encrypted: `openssl pkcs8 -topk8` with the password `sécret`.
    /// OpenSSL uses AES-256 in CBC mode and PBKDF2 with SHA-256.
    const PBKDF2: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----\n\
        MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAjcQQzVQ0+SJAICCAAw\n\
        DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEB+h9H3rcKUx6fWwIUNiyncEgZDF\n\
        Ja1CFgg13vg8f+758XB5vaSRcmHPRWiDEzEUvYmbVFfe+BE7aZjxlJT47LAeoTM8\n\
        kvBgFqNj97P1CQbcOdeWXNZE8sq0vBkk5hczXv1/i9if/I+RYvONG0zm8MsbOUUu\n\
        P4fkaxPZwkjRJFpiyKsB/1/niSCjjOYh0uC5XG0A9OS4LeHN6MtYo5AhMdqUdps=\n\
        -----END ENCRYPTED PRIVATE KEY-----\n";

    /// The same key, encrypted with `-scrypt`.
    const SCRYPT: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----\n\
        MIHkME8GCSqGSIb3DQEFDTBCMCEGCSsGAQQB2kcECzAUBAh80X4exJ594wICQAAC\n\
        AQgCAQEwHQYJYIZIAWUDBAEqBBDeSnOpQuXj2AKNPzerMdg3BIGQLMxKcdOrSFoj\n\
        GY6Plw74au0cbumIRtBzon+w5Cr4ywzG0Ftu0LeFToEmpL6ujDSWE7y9AXm9coRC\n\
        nrxZm7kaauIvxU/TZ0FuYQuBgyQeofVguDmqhcfnDC5FoteD44s2yKnJc+W8pqk8\n\
        PG9W0hV57coZLsLXFWOmF+3LaCZhjZs1UDjFqhm5SJKQ1c4RZad2\n\
        -----END ENCRYPTED PRIVATE KEY-----\n";

    /// The same key, not encrypted.
    const PLAIN: &str = "-----BEGIN PRIVATE KEY-----\n\
        MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgZFhCcMYNGcEFJKBa\n\
        3FK5bED61gztD1CQCIxpbjZNVsChRANCAAS6q5nw4GxcAtPid23j4/JA2+9VtyVC\n\
        X/26CTCjI/H++Vyu25BOrE6TckqgoC9YS4SiEIfNVBEYwiunOYxlw143\n\
        -----END PRIVATE KEY-----\n";

    fn pem(content: &str) -> Pem<'_> {
        Pem {
            path: Path::new("client.pem"),
            content,
        }
    }

    fn password(text: &str) -> KeyPassword {
        KeyPassword::new(text.as_bytes().to_vec())
    }

    #[test]
    fn keys_that_openssl_encrypted_are_decrypted() {
        let expected = pem(PLAIN).private_key().unwrap();
        for encrypted in [PBKDF2, SCRYPT] {
            assert!(pem(encrypted).has_encrypted_key());
            let content = pem(encrypted).decrypt_keys(&password("sécret")).unwrap();
            assert_eq!(pem(&content).private_key().unwrap(), expected);
        }
    }

    #[test]
    fn a_wrong_password_is_an_error_that_names_the_file_but_not_the_password() {
        for wrong in ["", "secret", "sécret "] {
            let error = pem(PBKDF2).decrypt_keys(&password(wrong)).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with("client.pem: cannot decrypt"), "{text}");
            assert!(!text.contains("cret"), "{text}");
        }
        assert!(!format!("{:?}", password("secret")).contains("secret"));
    }

    #[test]
    fn a_file_without_an_encrypted_key_is_unchanged_by_a_password() {
        assert!(!pem(PLAIN).has_encrypted_key());
        let content = pem(PLAIN).decrypt_keys(&password("secret")).unwrap();
        assert_eq!(*content, PLAIN);
    }

    #[test]
    fn an_encrypted_key_without_a_password_is_an_error_that_names_the_option() {
        let traditional = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
             DEK-Info: AES-256-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n";
        for encrypted in [PBKDF2, traditional] {
            let error = pem(encrypted).private_key().unwrap_err().to_string();
            let is_named = error.contains("tlsCertificateKeyFilePassword");
            assert!(is_named, "{error}");
        }
        let missing = pem("").private_key().unwrap_err().to_string();
        assert!(!missing.contains("encrypted"), "{missing}");
    }
}
