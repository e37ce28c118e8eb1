//! The length of files, the width of comments, and the folders of the mutation tests.

use std::fs;

use crate::sources::{all_sources, extension, files, root};

const LONGEST_FILE: usize = 800;

/// Maximum width of a comment in characters, including the indentation.
const COMMENT_WIDTH: usize = 100;

/// The extensions of files in which comments begin with `#`.
const HASH_COMMENTS: [&str; 4] = ["py", "toml", "yaml", "yml"];

/// The extensions of files in which comments begin with `//` or `/*`.
const SLASH_COMMENTS: [&str; 9] = ["c", "go", "h", "java", "js", "mjs", "php", "rs", "ts"];

#[test]
fn no_source_file_exceeds_the_maximum_length() {
    for file in all_sources() {
        let lines = fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= LONGEST_FILE, "{}: {lines} lines", file.display());
    }
}

/// True if a line of a file with this extension is a comment that can be wrapped. A comment of a
/// single word cannot be wrapped.
fn is_comment(extension: &str, line: &str) -> bool {
    let marks: &[&str] = match HASH_COMMENTS.contains(&extension) {
        true => &["#"],
        false => &["//", "/*", "* "],
    };
    let comment = line.trim_start();
    marks.iter().any(|mark| comment.starts_with(mark)) && comment.split_whitespace().count() > 2
}

#[test]
fn comments_that_can_be_wrapped_are_recognized() {
    for (extension, line, expected) in [
        ("rs", "    // two words", true),
        ("rs", "//! one", false),
        ("rs", "let a = 1; // two words", false),
        ("js", " * two words", true),
        ("js", "/** @type {number} the size */", true),
        ("py", "# two words", true),
        ("c", "#define SIZE 1", false),
    ] {
        assert_eq!(is_comment(extension, line), expected, "{line}");
    }
}

/// Formatters wrap code, but not comments, so this test checks the comments.
#[test]
fn no_comment_line_exceeds_the_maximum_width() {
    let extensions = [HASH_COMMENTS.as_slice(), &SLASH_COMMENTS].concat();
    let (mut found, mut wide) = (Vec::new(), Vec::new());
    for folder in ["config", "proxy", "tests", "benches", "docker"] {
        files(&root().join(folder), &extensions, &mut found);
    }
    assert!(
        found.len() > 500,
        "expected more than 500 files, got {}",
        found.len()
    );
    for file in found {
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            let is_wide = line.chars().count() > COMMENT_WIDTH;
            if is_wide && is_comment(extension(&file), line) {
                wide.push(format!("{}:{}", file.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "over {COMMENT_WIDTH} columns: {wide:#?}");
}

/// Without this check, the mutation tests would silently skip a folder that was renamed.
#[test]
fn folders_in_the_configuration_of_the_mutation_tests_exist() {
    let text = fs::read_to_string(root().join(".cargo/mutants.toml")).unwrap();
    let globs = text.split("examine_globs = [").nth(1).unwrap();
    let globs = globs.split(']').next().unwrap();
    let folders: Vec<_> = globs.split('"').skip(1).step_by(2).collect();
    assert!(folders.len() > 5, "{folders:?}");
    for folder in folders {
        let folder = folder.strip_suffix("/**").unwrap();
        assert!(root().join(folder).is_dir(), "no folder {folder}");
    }
}
