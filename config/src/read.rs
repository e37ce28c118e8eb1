//! Reads sections and values from the merged and checked table.
//!
//! Absent values get their defaults here, secrets are read from their files, and texts with commas
//! are split into lists. Reading continues after a problem. A problem that only follows from
//! another problem is not reported. For example, a connection string of the wrong type is not also
//! reported as missing.

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use toml::{Table, Value};

use crate::address::{AdminAddress, ListenAddress, MAX_PEERS, PeerAddress};
use crate::file::{MAX_SECRET_BYTES, ReadFile, read_bounded};
use crate::path::KeyPath;
use crate::problem::{Problem, Problems, shown_text};
use crate::schema::{Key, KeyKind, Section, shape_id};
use crate::secret::{self, Secret, SecretBytes, SecretFile};

/// A type with the settings of one section.
pub(crate) trait ReadSection: Sized {
    /// Reads the section. Returns `None` if one of its values could not be read. In this case, a
    /// problem is already reported.
    fn read(part: &mut Part<'_>) -> Option<Self>;
}

/// A section that is being read: its table, its path, and the problems so far.
pub(crate) struct Part<'a> {
    /// The table of the section; `None` if the section is absent.
    table: Option<&'a Table>,
    pub(crate) path: KeyPath,
    pub(crate) problems: &'a mut Problems,
}

impl<'a> Part<'a> {
    /// The root of the configuration: the table into which all sources (the file, the environment
    /// and the command line) were merged.
    pub(crate) fn file(table: &'a Table, problems: &'a mut Problems) -> Self {
        Self {
            table: Some(table),
            path: KeyPath::default(),
            problems,
        }
    }

    /// Reads the value of a key of this section, or its default. `None` only after a problem. After
    /// some problems, the result is a part of the value, so that reading can continue.
    pub(crate) fn value<T: Setting>(&mut self, key: &Key) -> Option<T> {
        let path = self.path.child(key.name()).shown;
        let default = || key.default.map(|default| key.kind.parse(default));
        let Some(value) = self.given(key.name()).cloned().or_else(default) else {
            let absent = T::absent();
            if absent.is_none() && !self.problems.has(&path) {
                self.add(&path, "", "must be given");
            }
            return absent;
        };
        let mut given = Given {
            kind: key.kind,
            path: &path,
            problems: self.problems,
        };
        T::read(&value, &mut given)
    }

    /// Reads the value of the key `name`, as [`Part::value`] does. `section` is the declaration of
    /// this part's section. Also returns `None` if `section` has no key `name`.
    pub(crate) fn named<T: Setting>(&mut self, section: &Section, name: &str) -> Option<T> {
        self.value(section.key(name)?)
    }

    /// Reads the subsection `name`. If the subsection is absent, all its values have their
    /// defaults.
    pub(crate) fn section<T: ReadSection>(&mut self, name: &str) -> Option<T> {
        T::read(&mut self.below(name))
    }

    /// Reads the subsection `name`. Returns `None` if the subsection is absent or has a problem.
    pub(crate) fn optional_section<T: ReadSection>(&mut self, name: &str) -> Option<T> {
        self.given(name)?;
        self.section(name)
    }

    /// The subsection with this name.
    pub(crate) fn below(&mut self, name: &str) -> Part<'_> {
        Part {
            table: self.given(name).and_then(Value::as_table),
            path: self.path.child(name),
            problems: self.problems,
        }
    }

    /// One element of a list of tables.
    pub(crate) fn element(&mut self, name: &str, index: usize) -> Part<'_> {
        Part {
            table: self.tables(name).get(index).and_then(Value::as_table),
            path: self.path.child(name).element(index),
            problems: self.problems,
        }
    }

    /// The list of tables with this name; empty if the list is absent.
    pub(crate) fn tables(&self, name: &str) -> &'a [Value] {
        let list = self.given(name).and_then(Value::as_array);
        list.map(Vec::as_slice).unwrap_or_default()
    }

    /// The value in the merged table; `None` if it is absent, even if the key has a default.
    pub(crate) fn given(&self, name: &str) -> Option<&'a Value> {
        self.table.and_then(|table| table.get(name))
    }

    pub(crate) fn add(&mut self, path: &str, given: &str, allowed: &str) {
        self.problems.add(Problem::new(path, given, allowed));
    }
}

/// A type that the value of a key can have.
pub(crate) trait Setting: Sized {
    /// Reads a value that the check against the schema (module `check`) has already accepted.
    /// `None` only after a problem.
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self>;

    /// The value of an absent key without a default; `None` if the key is required.
    fn absent() -> Option<Self> {
        None
    }
}

/// The kind and the path of a value that is being read, and the problems so far.
pub(crate) struct Given<'a> {
    kind: KeyKind,
    path: &'a str,
    problems: &'a mut Problems,
}

impl Given<'_> {
    /// Returns `value` unchanged. Reports `None` as a bug in Seawall, because the check against the
    /// schema (module `check`) accepts only values that have their key's type.
    pub(crate) fn fitting<T>(&mut self, value: Option<T>) -> Option<T> {
        if value.is_none() {
            let allowed = "the value does not have its key's type; this is a bug in Seawall";
            self.problems
                .add(Problem::without_value(self.path, allowed));
        }
        value
    }

    pub(crate) fn add(&mut self, given: &str, allowed: &str) {
        let problem = Problem::new(self.path, &shown_text(given), allowed);
        self.problems.add(problem);
    }

    /// Reports that the value is wrong. The problem does not show the value, because it is secret.
    pub(crate) fn add_hidden(&mut self, allowed: &str) {
        self.problems
            .add(Problem::without_value(self.path, allowed));
    }

    /// Reads the file at `path`.
    fn file(&mut self, path: &str) -> Option<ReadFile> {
        let read = ReadFile::read(PathBuf::from(path));
        let problem = |(path, error): (PathBuf, _)| unreadable(self.path, &path, &error);
        read.map_err(|failed| self.problems.add(problem(failed)))
            .ok()
    }

    /// Reads the secret in the file at `path`.
    fn secret_file(&mut self, path: &str) -> Option<SecretFile> {
        let path = PathBuf::from(path);
        let secret = secret_from(self.path, &path, self.problems)?;
        Some(SecretFile { path, secret })
    }

    /// Reads several files, whose paths are separated by commas. The result does not contain files
    /// with problems.
    fn files<T>(
        &mut self,
        value: &Value,
        mut read: impl FnMut(&mut Self, &str) -> Option<T>,
    ) -> Option<Vec<T>> {
        let text = self.text(value)?;
        if parts(text).next().is_none() {
            self.add(text, "must name at least one file");
        }
        Some(parts(text).filter_map(|path| read(self, path)).collect())
    }

    pub(crate) fn text<'v>(&mut self, value: &'v Value) -> Option<&'v str> {
        self.fitting(value.as_str())
    }
}

/// Implements [`Setting`] for types whose values need no conversion.
macro_rules! plain {
    ($($type:ty: $read:expr;)*) => {$(
        impl Setting for $type {
            fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
                let read: fn(&Value) -> Option<Self> = $read;
                given.fitting(read(value))
            }
        }
    )*};
}

plain! {
    bool: Value::as_bool;
    i32: integer;
    u16: integer;
    u32: integer;
    u64: integer;
    usize: integer;
    f64: |value| value.as_float().or_else(|| integer(value).map(u32::into));
    NonZeroU32: |value| integer(value).and_then(Self::new);
    NonZeroUsize: |value| integer(value).and_then(Self::new);
    Duration: |value| integer(value).map(Self::from_millis);
    String: |value| value.as_str().map(str::to_owned);
    AdminAddress: |value| value.as_str()?.parse().ok();
    ListenAddress: |value| value.as_str()?.parse().ok();
    Vec<u8>: |value| secret::decode(value.as_str()?).ok();
}

fn integer<T: TryFrom<i64>>(value: &Value) -> Option<T> {
    T::try_from(value.as_integer()?).ok()
}

/// The value of a key. `None` if the key is absent and has no default, or if its value is the
/// number 0.
impl<T: Setting> Setting for Option<T> {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        let is_none = value.as_integer() == Some(0);
        Some((!is_none).then(|| T::read(value, given)).flatten())
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

impl<const N: usize> Setting for SecretBytes<N> {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        given.fitting(value.as_str().and_then(Self::decoded))
    }
}

impl Setting for Secret {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        let text = given.text(value)?;
        match given.kind {
            KeyKind::SecretFile => secret_from(given.path, Path::new(text), given.problems),
            _ => Some(Self::new(text.to_owned())),
        }
    }
}

impl Setting for SecretFile {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        let path = given.text(value)?;
        given.secret_file(path)
    }
}

/// Files with secrets, whose paths are separated by commas.
impl Setting for Vec<SecretFile> {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        given.files(value, Given::secret_file)
    }

    fn absent() -> Option<Self> {
        Some(Self::new())
    }
}

impl Setting for PathBuf {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        given.text(value).map(Self::from)
    }
}

impl Setting for ReadFile {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        let path = given.text(value)?;
        given.file(path)
    }
}

/// Files whose paths are separated by commas.
impl Setting for Vec<ReadFile> {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        given.files(value, Given::file)
    }
}

impl Setting for Vec<ListenAddress> {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        let Value::Array(elements) = value else {
            return ListenAddress::read(value, given).map(|address| vec![address]);
        };
        elements
            .iter()
            .map(|element| ListenAddress::read(element, given))
            .collect()
    }
}

impl Setting for Vec<IpNet> {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        let mut networks = Self::new();
        for text in parts(given.text(value)?) {
            let address = text.parse::<IpAddr>().map(IpNet::from);
            match text.parse::<IpNet>().ok().or(address.ok()) {
                Some(network) => networks.push(canonical(network)),
                None => given.add(
                    text,
                    "must be IP addresses or ranges such as 10.0.0.0/8, joined by commas",
                ),
            }
        }
        Some(networks)
    }

    fn absent() -> Option<Self> {
        Some(Self::new())
    }
}

/// An IPv6 address in `::ffff:0:0/96` (RFC 4291) contains an IPv4 address. A network of such
/// addresses becomes the network of the IPv4 addresses, because Seawall converts the addresses of
/// peers in the same way.
fn canonical(network: IpNet) -> IpNet {
    match (network, network.addr().to_canonical()) {
        (IpNet::V6(wide), address @ IpAddr::V4(_)) if wide.prefix_len() >= 96 => {
            IpNet::new(address, wide.prefix_len() - 96).unwrap_or(network)
        }
        _ => network,
    }
}

/// Host names, separated by commas. They are converted to lower case.
impl Setting for Vec<String> {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        let names: Vec<&str> = parts(given.text(value)?).collect();
        for name in &names {
            let is_part = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            if !name.chars().all(is_part) {
                given.add(name, "must be host names without ports, joined by commas");
            }
        }
        Some(names.iter().map(|name| name.to_ascii_lowercase()).collect())
    }

    fn absent() -> Option<Self> {
        Some(Self::new())
    }
}

/// The admin addresses of other instances, separated by commas.
impl Setting for Vec<PeerAddress> {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        let mut peers = Self::new();
        for text in parts(given.text(value)?) {
            match text.parse::<PeerAddress>() {
                Ok(peer) if peers.contains(&peer) => given.add(text, "must not be listed twice"),
                Ok(peer) => peers.push(peer),
                // The text is not shown, because a URL may contain a user with a password.
                Err(_) => given.add(
                    if text.contains('@') { "(hidden)" } else { text },
                    "must be host:port or a URL such as https://seawall-2:9909, joined by commas",
                ),
            }
        }
        if peers.len() > MAX_PEERS {
            let allowed = format!("must be at most {MAX_PEERS} addresses");
            given.add(&peers.len().to_string(), &allowed);
        }
        Some(peers)
    }

    fn absent() -> Option<Self> {
        Some(Self::new())
    }
}

/// Pairs of the id of a query shape and the slow log's threshold for this shape. An operation that
/// takes at least this long is logged.
impl Setting for Vec<(u64, Duration)> {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        let table = given.fitting(value.as_table())?;
        // `table` is ordered by the texts of the ids. All ids have the same length and lower-case
        // digits, so this is also the order of their numbers.
        let thresholds = table.iter().map(|(id, threshold)| {
            Some((
                given.fitting(shape_id(id))?,
                Duration::read(threshold, given)?,
            ))
        });
        thresholds.collect()
    }

    fn absent() -> Option<Self> {
        Some(Self::new())
    }
}

/// Splits a text at its commas. Removes the spaces around each part, and omits empty parts.
pub(crate) fn parts(joined: &str) -> impl Iterator<Item = &str> {
    let parts = joined.split(',').map(str::trim);
    parts.filter(|part| !part.is_empty())
}

/// Reads a secret from a file. The line break at the end of the file, which editors and `echo` add,
/// does not belong to the secret. `None` if a problem was reported.
pub(crate) fn secret_from(key: &str, path: &Path, problems: &mut Problems) -> Option<Secret> {
    let text = match read_bounded(path, MAX_SECRET_BYTES) {
        Ok(text) => text,
        Err(error) => {
            problems.add(unreadable(key, path, &error));
            return None;
        }
    };
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let secret = line.strip_suffix('\r').unwrap_or(line);
    if secret.is_empty() {
        let allowed = "must not be an empty file";
        problems.add(Problem::new(key, &shown_path(path), allowed));
        return None;
    }
    Some(Secret::new(secret.to_owned()))
}

fn unreadable(key: &str, path: &Path, error: &std::io::Error) -> Problem {
    let allowed = format!("must be a readable file: {error}");
    Problem::new(key, &shown_path(path), &allowed)
}

pub(crate) fn shown_path(path: &Path) -> String {
    shown_text(&path.display().to_string())
}
