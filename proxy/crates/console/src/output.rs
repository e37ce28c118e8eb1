//! Files with the results of a command. Usually a file is written as a whole: if the disk is full
//! or the process is killed, the file keeps its former content. [`write_whole`] lists the
//! exceptions.

use std::{
    fs::{self, File, Metadata},
    hash::{BuildHasher as _, RandomState},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown},
    path::{Path, PathBuf},
};

/// Replaces the content of a file, or creates the file. `write` gets a temporary file in the same
/// folder, which then replaces the file. `write` gets the file itself if the file is a pipe or a
/// device, has several names (hard links), or is a symbolic link to a file that does not exist. It
/// also gets the file itself if this process lacks a permission: to create files in the folder, or
/// to give the temporary file to the file's owner. A file that is mounted, for example in a
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
    let (target, existing) = match existing {
        Ok((found, target)) if found.is_file() && found.nlink() == 1 => (target, Some(found)),
        Err(_) if fs::symlink_metadata(path).is_err() => (path.to_owned(), None),
        _ => return write(&File::create(path)?),
    };
    if existing.is_some() {
        // Fail if this process may not write the file. A rename would replace the file even without
        // this permission.
        drop(File::options().write(true).open(&target)?);
    }
    let temporary = temporary_beside(&target);
    let file = match create_like(existing.as_ref(), &temporary) {
        Err(error) if existing.is_some() && is_not_allowed(error.kind()) => {
            return write(&File::create(&target)?);
        }
        created => created?,
    };
    let written = write_synced(&file, write).and_then(|written| {
        replace(&target, &temporary)?;
        Ok(written)
    });
    // If the temporary file has replaced the file, the temporary file no longer exists. So the
    // error of this call is ignored.
    drop(fs::remove_file(&temporary));
    written
}

/// Creates a file that only the current user of the operating system can read. `write` gets a
/// temporary file in the same folder, which gets the name of the file only when it is complete. So
/// if `write` fails or the process is killed, there is no file with this name. One exception: on a
/// file system without hard links, a process that is killed just before the renaming leaves an
/// empty file.
///
/// # Errors
/// If a file with this name exists: it is not replaced. Otherwise the error of `write`, or the
/// error of an access to the files.
pub fn write_new<T, E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&File) -> Result<T, E>,
) -> Result<T, E> {
    // Check this now, because `write` may take long.
    if fs::symlink_metadata(path).is_ok() {
        let error = io::Error::new(io::ErrorKind::AlreadyExists, "the file exists already");
        return Err(error.into());
    }
    let temporary = temporary_beside(path);
    let file = create_private(&temporary)?;
    let written = write_synced(&file, write).and_then(|written| {
        publish(fs::hard_link(&temporary, path), &temporary, path)?;
        Ok(written)
    });
    // If the temporary file was renamed, the old name no longer exists. So the error of this call
    // is ignored.
    drop(fs::remove_file(&temporary));
    written
}

/// Gives a temporary file the name `path`. `linked` is the result of the attempt to create `path`
/// as a hard link. If this attempt failed, for example because the file system has no hard links,
/// renames the file instead. Fails if a file with the name `path` exists.
fn publish(linked: io::Result<()>, temporary: &Path, path: &Path) -> io::Result<()> {
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            // A rename replaces an existing file, so reserve the name first.
            drop(File::create_new(path)?);
            let renamed = fs::rename(temporary, path);
            if renamed.is_err() {
                drop(fs::remove_file(path));
            }
            renamed
        }
        linked => linked,
    }
}

/// A path for a temporary file in the same folder as `path`.
fn temporary_beside(path: &Path) -> PathBuf {
    let number = RandomState::new().hash_one(());
    path.with_file_name(format!(".seawall-{number:016x}.tmp"))
}

/// True for an error of [`create_like`] that means: this process may not create a file in the
/// folder, or may not give the file to another owner.
fn is_not_allowed(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    matches!(kind, PermissionDenied | ReadOnlyFilesystem)
}

/// Creates a file. If it will replace an existing file, it gets the owner and the permissions of
/// that file.
fn create_like(existing: Option<&Metadata>, path: &Path) -> io::Result<File> {
    let Some(existing) = existing else {
        return File::create_new(path);
    };
    // The existing file may be secret. So other users cannot open the new file before it has its
    // permissions.
    let file = create_private(path)?;
    if let Err(error) = set_owner_and_permissions(&file, existing) {
        drop(fs::remove_file(path));
        return Err(error);
    }
    Ok(file)
}

/// Creates a file that only the current user of the operating system can open.
fn create_private(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600);
    options.open(path)
}

fn set_owner_and_permissions(file: &File, existing: &Metadata) -> io::Result<()> {
    let created = file.metadata()?;
    let (uid, gid) = (existing.uid(), existing.gid());
    if (created.uid(), created.gid()) != (uid, gid) {
        fchown(file, Some(uid), Some(gid))?;
    }
    file.set_permissions(existing.permissions())
}

fn write_synced<T, E: From<io::Error>>(
    file: &File,
    write: impl FnOnce(&File) -> Result<T, E>,
) -> Result<T, E> {
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
        fs::Permissions,
        io::Write as _,
        os::unix::fs::{PermissionsExt as _, chown, symlink},
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

    /// Writes a part of the content, and then fails.
    fn write_half(mut file: &File) -> io::Result<()> {
        file.write_all(b"half")?;
        Err(io::ErrorKind::StorageFull.into())
    }

    #[test]
    fn a_file_keeps_its_content_if_its_new_content_cannot_be_written() {
        let folder = Folder::create("full");
        let path = folder.0.join("report.html");
        assert!(write_whole(&path, write_half).is_err());
        assert_eq!(folder.files(), 0);
        fs::write(&path, "old").unwrap();
        assert!(write_whole(&path, write_half).is_err());
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

    #[test]
    fn a_replaced_file_keeps_its_owner() {
        let folder = Folder::create("owner");
        let path = folder.0.join("report.html");
        fs::write(&path, "old").unwrap();
        // Only root may give a file to another user.
        chown(&path, Some(1), Some(1)).ok();
        let owner = || {
            let file = fs::metadata(&path).unwrap();
            (file.uid(), file.gid())
        };
        let before = owner();
        write_whole(&path, |mut file| file.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(owner(), before);
        assert_eq!(folder.files(), 1);
    }

    #[test]
    fn all_hard_links_of_a_file_have_its_new_content() {
        let folder = Folder::create("names");
        let [path, other] = ["report.html", "other.html"].map(|name| folder.0.join(name));
        fs::write(&path, "old").unwrap();
        fs::hard_link(&path, &other).unwrap();
        write_whole(&path, |mut file| file.write_all(b"new")).unwrap();
        for name in [&path, &other] {
            assert_eq!(fs::read_to_string(name).unwrap(), "new", "{name:?}");
        }
    }

    #[test]
    fn a_new_file_gets_its_name_when_it_is_complete() {
        let folder = Folder::create("new");
        let path = folder.0.join("capture.swc");
        assert!(write_new(&path, write_half).is_err());
        assert_eq!(folder.files(), 0);
        let write = |mut file: &File| {
            assert!(!path.exists());
            file.write_all(b"whole")
        };
        write_new(&path, write).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(folder.files(), 1);
    }

    #[test]
    fn write_new_does_not_replace_an_existing_file() {
        let folder = Folder::create("exists");
        let path = folder.0.join("capture.swc");
        // Another process creates a file with the same name at the same time.
        let write = |mut file: &File| {
            file.write_all(b"new")?;
            fs::write(&path, "old")
        };
        for _ in 0..2 {
            let error = write_new(&path, write).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::read_to_string(&path).unwrap(), "old");
            assert_eq!(folder.files(), 1);
        }
    }

    #[test]
    fn a_new_file_is_renamed_if_its_file_system_has_no_hard_links() {
        let folder = Folder::create("unlinked");
        let [path, temporary] = ["capture.swc", "temporary"].map(|name| folder.0.join(name));
        let unsupported = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        fs::write(&temporary, "new").unwrap();
        publish(unsupported(), &temporary, &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        fs::write(&temporary, "newer").unwrap();
        let error = publish(unsupported(), &temporary, &path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        let [other, missing] = ["other.swc", "missing"].map(|name| folder.0.join(name));
        assert!(publish(unsupported(), &missing, &other).is_err());
        assert!(!other.exists());
    }

    /// In a container, a file may be mounted into a folder of a read-only file system.
    #[test]
    fn a_file_is_written_in_place_if_its_file_system_or_its_folder_is_read_only() {
        let (read_only, denied, full) = (30, 13, 28);
        for (code, is_in_place) in [(read_only, true), (denied, true), (full, false)] {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(is_not_allowed(error.kind()), is_in_place, "{error}");
        }
    }
}
