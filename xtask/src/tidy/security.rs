//! Checks that the tests named in SECURITY.md and in the pages about the protocols between boxes
//! exist.

use std::fs;
use std::io;
use std::path::Path;

/// Pages that name tests without their files.
const PAGES: &[&str] =
    &["docs/wan-encryption.md", "docs/wan-transport.md", "docs/spec/wan-transport.md"];
/// Folders of those tests.
const FOLDERS: &[&str] = &["proto/seal", "proto/wan", "checks/tests/attacks"];

pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let path = root.join("SECURITY.md");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut faults = Vec::new();
    for (file, test) in tests(&text) {
        let code = fs::read_to_string(root.join(file)).unwrap_or_default();
        if !code.contains(&format!("fn {test}(")) {
            faults.push(format!(
                "SECURITY.md: there is no test {test} in {file}: name the one that took its place"
            ));
        }
    }
    for target in targets(&text) {
        if !root.join("checks/fuzz/corpus").join(target).is_dir() {
            faults.push(format!("SECURITY.md: there is no fuzz target {target}"));
        }
    }
    let mut code = String::new();
    for folder in FOLDERS {
        read_code(&root.join(folder), &mut code).map_err(|e| format!("{folder}: {e}"))?;
    }
    for page in PAGES {
        let text = fs::read_to_string(root.join(page)).map_err(|e| format!("{page}: {e}"))?;
        for test in sentences(&text).filter(|test| !code.contains(&format!("fn {test}("))) {
            faults
                .push(format!("{page}: there is no test {test}: name the one that took its place"));
        }
    }
    Ok(faults)
}

fn read_code(folder: &Path, code: &mut String) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read_code(&path, code)?;
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            code.push_str(&fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

/// Returns names of tests, which are sentences of four words or more.
fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |word: &&str| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    quoted(text).filter(is_name).filter(|word| word.matches('_').count() > 3)
}

/// Returns the text between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

fn tests(text: &str) -> impl Iterator<Item = (&str, &str)> {
    quoted(text).filter_map(|word| {
        word.split_once(".rs::").map(|(file, test)| (&word[..file.len() + 3], test))
    })
}

/// Returns the words between backticks behind "fuzz target" in a line.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.split_once("fuzz target"))
        .flat_map(|(_, rest)| quoted(rest))
}

#[cfg(test)]
mod tests {
    #[test]
    fn tests_and_targets_are_found() {
        let text = "| it holds | `a/b.rs::c_d`, `e.rs::f`, fuzz targets `g` and `h` |\n\
                    `cargo xtask` has no test";
        assert_eq!(super::tests(text).collect::<Vec<_>>(), [("a/b.rs", "c_d"), ("e.rs", "f")]);
        assert_eq!(super::targets(text).collect::<Vec<_>>(), ["g", "h"]);
        let text =
            "counted by `replayed` and `too_many_questions`; `who_says_it_twice_says_it_once`";
        assert_eq!(super::sentences(text).collect::<Vec<_>>(), ["who_says_it_twice_says_it_once"]);
    }
}
