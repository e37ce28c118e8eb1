//! A private directory for the files of one test.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// A directory below the system's temporary directory. Dropping the value removes the directory
/// with its content.
#[derive(Debug)]
#[must_use = "dropping it removes the directory"]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates a directory that only this user can read.
    pub fn create() -> io::Result<Self> {
        let name = format!("seawall-test-{:016x}", rand::random::<u64>());
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in the directory. The file need not exist.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file into the directory and returns the file's path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> io::Result<PathBuf> {
        let path = self.join(name);
        fs::write(&path, content)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A passed test must not fail because its directory could not be removed.
        drop(fs::remove_dir_all(&self.path));
    }
}
