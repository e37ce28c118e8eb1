//! Reads files up to a maximum size.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A file that was read together with the configuration, for example a certificate. Two values of
/// this type are equal only if the contents of their files are equal.
#[derive(Clone, PartialEq, Eq)]
pub struct ReadFile {
    path: PathBuf,
    content: String,
}

impl ReadFile {
    /// Reads a file of at most 16 MiB.
    ///
    /// # Errors
    /// The path and the cause, if the file cannot be read or is larger than 16 MiB.
    pub fn read(path: PathBuf) -> Result<Self, (PathBuf, io::Error)> {
        match read_bounded(&path, MAX_PEM_BYTES) {
            Ok(content) => Ok(Self { path, content }),
            Err(error) => Err((path, error)),
        }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content of the file. It may be a private key, so it must not appear in a log or an
    /// error.
    pub fn expose(&self) -> &str {
        &self.content
    }
}

impl fmt::Debug for ReadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadFile").field(&self.path).finish()
    }
}

/// Reads a file of at most `max_bytes` bytes. Without this limit, a path that names a device or a
/// large log file by mistake could fill the memory. A file that changes while it is read is
/// refused, because only a part of the change may have been read.
pub(crate) fn read_bounded(path: &Path, max_bytes: u64) -> io::Result<String> {
    read_and_then(path, max_bytes, || {})
}

/// Like [`read_bounded`], but calls `then` after the content was read. A test uses `then` to change
/// the file.
fn read_and_then(path: &Path, max_bytes: u64, then: impl FnOnce()) -> io::Result<String> {
    let mut text = String::new();
    let mut file = File::open(path)?;
    let before = file.metadata()?;
    // One byte more than `max_bytes` is read. If this byte exists, the file is too large.
    let mut bounded = (&mut file).take(max_bytes.saturating_add(1));
    bounded.read_to_string(&mut text)?;
    if bounded.limit() == 0 {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {max_bytes} bytes"),
        ));
    }
    then();
    if before.is_file() && version(&before) != version(&file.metadata()?) {
        return Err(io::Error::other("the file changed while it was read"));
    }
    Ok(text)
}

/// The size and the modification time of a file. A write usually changes at least one of the two.
fn version(metadata: &Metadata) -> (u64, Option<SystemTime>) {
    (metadata.len(), metadata.modified().ok())
}

/// Maximum size of the configuration file, in bytes. It is enough for thousands of
/// `[[auth.users]]`.
pub(crate) const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Maximum size of a secret file, in bytes. A connection string with a hundred hosts is much
/// smaller.
pub(crate) const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// Maximum size of a PEM file, in bytes. Only long revocation lists are nearly as large.
const MAX_PEM_BYTES: u64 = 16 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_changes_while_it_is_read_is_refused() {
        let name = format!("seawall-config-file-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, "one").unwrap();
        assert_eq!(read_bounded(&path, 10).unwrap(), "one");
        let changed = read_and_then(&path, 10, || fs::write(&path, "three").unwrap());
        assert_eq!(
            changed.unwrap_err().to_string(),
            "the file changed while it was read"
        );
        fs::remove_file(&path).unwrap();
    }
}
