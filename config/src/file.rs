//! Bounded reading of files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads a file of at most `max_bytes` bytes. The limit protects the memory if the path names a
/// device or a log file by mistake.
pub(crate) fn read_bounded(path: &Path, max_bytes: u64) -> io::Result<String> {
    let mut text = String::new();
    // One byte more than `max_bytes` is read. If this byte exists, the file is too large.
    let mut bounded = File::open(path)?.take(max_bytes.saturating_add(1));
    bounded.read_to_string(&mut text)?;
    if bounded.limit() == 0 {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {max_bytes} bytes"),
        ));
    }
    Ok(text)
}

/// Maximum size of the configuration file, in bytes. It is enough for thousands of
/// `[[auth.users]]`.
pub(crate) const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Maximum size of a secret file, in bytes. A connection string with a hundred hosts is much
/// smaller.
pub(crate) const MAX_SECRET_BYTES: u64 = 64 * 1024;
