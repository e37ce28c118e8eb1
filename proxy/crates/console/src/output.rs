//! Files with the results of a command. Usually a file is written as a whole: if the disk is full
//! or the process is killed, the file keeps its former content. [`write_whole`] lists the
//! exceptions.

use std::{
    fs::{self, File, Permissions},
    hash::{BuildHasher as _, RandomState},
    io,
    path::Path,
};

/// Replaces the content of a file, or creates the file. `write` gets a temporary file in the same
/// folder, which then replaces the file. Pipes and devices are written directly, and so is a file
/// in a folder in which this process may not create files. A file that is mounted, for example in a
/// container, cannot be replaced. The temporary file is then copied to this file.
///
/// # Errors
/// The error of `write`, or the error of an access to the files.
pub fn write_whole<T, E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&File) -> Result<T, E>,
) -> Result<T, E> {
    // If the path is a symbolic link, the file is replaced, and not the link.
    let existing = fs::canonicalize(path).and_then(|target| Ok((fs::metadata(&target)?, target)));
    let (target, permissions) = match existing {
        Ok((found, target)) if found.is_file() => (target, Some(found.permissions())),
        Err(_) if fs::symlink_metadata(path).is_err() => (path.to_owned(), None),
        _ => return write(&File::create(path)?),
    };
    let number = RandomState::new().hash_one(());
    let temporary = target.with_file_name(format!(".seawall-{number:016x}.tmp"));
    let file = match File::create_new(&temporary) {
        Err(error) if permissions.is_some() && error.kind() == io::ErrorKind::PermissionDenied => {
            return write(&File::create(&target)?);
        }
        created => created?,
    };
    let written = write_synced(&file, permissions, write).and_then(|written| {
        replace(&target, &temporary)?;
        Ok(written)
    });
    // If the temporary file has replaced the file, it no longer exists, so the error of this call
    // is ignored.
    drop(fs::remove_file(&temporary));
    written
}

fn write_synced<T, E: From<io::Error>>(
    file: &File,
    permissions: Option<Permissions>,
    write: impl FnOnce(&File) -> Result<T, E>,
) -> Result<T, E> {
    if let Some(permissions) = permissions {
        file.set_permissions(permissions)?;
    }
    let written = write(file)?;
    file.sync_all()?;
    Ok(written)
}

fn replace(target: &Path, temporary: &Path) -> io::Result<()> {
    match fs::rename(temporary, target) {
        // A file that is mounted, for example in a container, can only be written in place.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            let mut content = File::open(temporary)?;
            io::copy(&mut content, &mut File::create(target)?).map(drop)
        }
        renamed => renamed,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        io::Write as _,
        os::unix::fs::{PermissionsExt as _, symlink},
        path::PathBuf,
        process,
    };

    use super::*;

    /// A temporary directory of this process, which is deleted at the end of the test.
    struct Folder(PathBuf);

    impl Folder {
        fn create(name: &str) -> Self {
            let path = env::temp_dir().join(format!("seawall-output-{name}-{}", process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn files(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn a_file_keeps_its_content_if_its_new_content_cannot_be_written() {
        let folder = Folder::create("full");
        let path = folder.0.join("report.html");
        let fail = |mut file: &File| {
            file.write_all(b"half")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        };
        assert!(write_whole::<(), _>(&path, fail).is_err());
        assert_eq!(folder.files(), 0);
        fs::write(&path, "old").unwrap();
        assert!(write_whole::<(), _>(&path, fail).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(folder.files(), 1);
    }

    #[test]
    fn a_replaced_file_keeps_its_permissions_and_the_symbolic_link_to_it() {
        let folder = Folder::create("link");
        let [path, link] = ["report.html", "latest.html"].map(|name| folder.0.join(name));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        symlink(&path, &link).unwrap();
        write_whole(&link, |mut file| file.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(folder.files(), 2);
    }
}
