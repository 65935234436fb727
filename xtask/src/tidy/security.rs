//! SECURITY.md names tests; each must exist.

use std::fs;
use std::path::Path;

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
    Ok(faults)
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

fn tests(text: &str) -> impl Iterator<Item = (&str, &str)> {
    quoted(text)
        .filter_map(|word| word.split_once(".rs::").map(|(file, test)| (&word[..file.len() + 3], test)))
}

/// The words between backticks behind "fuzz target" in a line.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.split_once("fuzz target")).flat_map(|(_, rest)| quoted(rest))
}

#[cfg(test)]
mod tests {
    #[test]
    fn tests_and_targets_are_found() {
        let text =
            "| it holds | `a/b.rs::c_d`, `e.rs::f`, fuzz targets `g` and `h` |\n`cargo xtask` has no test";
        assert_eq!(super::tests(text).collect::<Vec<_>>(), [("a/b.rs", "c_d"), ("e.rs", "f")]);
        assert_eq!(super::targets(text).collect::<Vec<_>>(), ["g", "h"]);
    }
}
