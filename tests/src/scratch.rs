//! A private directory for the files of one test.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// A directory below the system's temporary one. Dropping it removes the directory and its content.
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

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in it, which need not exist.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file into it and returns the file's path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> io::Result<PathBuf> {
        let path = self.join(name);
        fs::write(&path, content)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A test that has passed must not fail because of a directory it leaves behind.
        drop(fs::remove_dir_all(&self.path));
    }
}
