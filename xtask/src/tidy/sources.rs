//! Rules that are checked on a file's text.

use std::fs;
use std::path::{Path, PathBuf};

/// Maximum lines of a file, without its tests.
const FILE_LINES_MAX: usize = 800;
/// Maximum lines of a function.
const FUNCTION_LINES_MAX: usize = 70;
/// Names without meaning.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "base", "helper", "helpers", "misc"];
/// Top-level folders with code.
pub const CODE_FOLDERS: &[&str] = &[
    "proto",
    "ports",
    "host",
    "verbs",
    "run",
    "apps",
    "doctor",
    "sim",
    "planner",
    "bench",
    "datapath",
    "ingest",
    "storage",
    "migration",
    "campaign",
    "python",
    "checks",
    "xtask",
];
/// Top-level folders in which unsafe code is allowed.
const UNSAFE_FOLDERS: &[&str] = &["ports", "host", "verbs", "run", "apps", "checks"];
/// Places with unsafe code in other folders: files, or folders with a slash at the end.
const UNSAFE_PLACES: &[&str] = &[
    "ingest/src/device/",
    "ingest/src/memory.rs",
    "python/src/memory.rs",
    "storage/src/medium/file/ring.rs",
];
/// Files and functions that may exceed the limits; the list must only shrink.
const EXCEPTIONS: &[(&str, &str)] = &[];

pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut faults = Vec::new();
    for &folder in CODE_FOLDERS {
        if !root.join(folder).join("README.md").exists() {
            faults.push(format!("{folder}/README.md, which states the folder's rule, is missing"));
        }
        let mut files = Vec::new();
        find(&root.join(folder), "rs", &mut files)?;
        let mut is_used = false;
        let mut places =
            UNSAFE_PLACES.iter().filter(|place| place.starts_with(&format!("{folder}/")));
        let mut used_places = Vec::new();
        for file in files {
            let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
            let found = unsafe_lines(&text).next().is_some();
            is_used |= found;
            if found {
                used_places.extend(UNSAFE_PLACES.iter().filter(|place| name.starts_with(**place)));
            }
            check_file(folder, &name, &text, &mut faults);
        }
        if UNSAFE_FOLDERS.contains(&folder) && !is_used {
            faults.push(format!("{folder}: unsafe code is allowed, and there is none"));
        }
        if let Some(place) = places.find(|place| !used_places.contains(place)) {
            faults.push(format!("{place}: unsafe code is allowed, and there is none"));
        }
    }
    Ok(faults)
}

/// Adds the files below `folder` with this extension, except build output.
pub fn find(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|e| format!("{}: {e}", folder.display()))?.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                find(&path, extension, files)?;
            }
        } else if path.extension().is_some_and(|e| e == extension) {
            files.push(path);
        }
    }
    files.sort();
    Ok(())
}

fn check_file(folder: &str, name: &str, text: &str, faults: &mut Vec<String>) {
    let stem = Path::new(name).file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    if EMPTY_NAMES.contains(&stem) {
        faults.push(format!("{name}: a name that says nothing"));
    }
    let is_test = name.contains("/tests/")
        || name.contains("/benches/")
        || name.contains("/examples/")
        || stem == "tests";
    let code: Vec<&str> = match text.find("\n#[cfg(test)]\nmod ") {
        Some(at) => text[..at].lines().collect(),
        None => text.lines().collect(),
    };
    if !is_test && code.len() > FILE_LINES_MAX && !is_excepted(name, "") {
        faults.push(format!(
            "{name}: {} lines without tests, more than {FILE_LINES_MAX}",
            code.len()
        ));
    }
    if !is_test {
        for (function, lines) in functions(&code) {
            if lines > FUNCTION_LINES_MAX && !is_excepted(name, &function) {
                faults.push(format!(
                    "{name}: fn {function} has {lines} lines, more than {FUNCTION_LINES_MAX}"
                ));
            }
        }
    }
    if folder == "proto"
        && name.ends_with("/src/lib.rs")
        && !text.contains("#![forbid(unsafe_code)]")
    {
        faults.push(format!("{name}: proto forbids unsafe code"));
    }
    check_unsafe(folder, name, text, faults);
}

fn is_excepted(file: &str, function: &str) -> bool {
    EXCEPTIONS.contains(&(file, function))
}

/// Returns name and length of each function, by indentation, which relies on rustfmt.
fn functions(lines: &[&str]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    let mut open: Vec<(String, usize, usize)> = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let code = line.trim_start();
        if let Some(name) = function_name(code)
            && !code.ends_with(';')
            && !code.ends_with('}')
        {
            open.push((name.to_string(), indent, number));
        }
        if code == "}"
            && let Some((name, _, start)) = open.pop_if(|(_, i, _)| *i == indent)
        {
            found.push((name, number - start + 1));
        }
    }
    found
}

fn function_name(code: &str) -> Option<&str> {
    const BEFORE: &[&str] =
        &["pub ", "pub(crate) ", "pub(super) ", "const ", "async ", "unsafe ", "extern \"C\" "];
    let mut rest = code;
    while let Some(stripped) = BEFORE.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = stripped;
    }
    let rest = rest.strip_prefix("fn ")?;
    rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()
}

/// Checks that unsafe code is only in permitted folders; clippy checks that each block has a safety
/// comment.
fn check_unsafe(folder: &str, name: &str, text: &str, faults: &mut Vec<String>) {
    let is_place = UNSAFE_PLACES.iter().any(|place| name.starts_with(place));
    if UNSAFE_FOLDERS.contains(&folder) || is_place {
        return;
    }
    faults.extend(unsafe_lines(text).map(|line| format!("{name}:{line}: unsafe code in {folder}")));
}

/// Numbers of the lines with unsafe code.
fn unsafe_lines(text: &str) -> impl Iterator<Item = usize> + '_ {
    let is_unsafe = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        let starts = ["unsafe {", "unsafe fn", "unsafe impl"];
        starts.iter().any(|start| code.contains(start)) && !code.contains('"')
    };
    (1..).zip(text.lines()).filter(move |(_, line)| is_unsafe(line)).map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured() {
        let text = "fn a() {\n    b();\n}\nimpl X \
                    {\n    pub const fn c() -> u8 {\n        1\n    }\n    fn d(&self);\n}";
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(functions(&lines), [("a".to_string(), 3), ("c".to_string(), 3)]);
    }

    #[test]
    fn faults_are_found() {
        let mut faults = Vec::new();
        check_file("proto", "proto/x/src/util.rs", "fn f() { unsafe { g() } }", &mut faults);
        assert_eq!(faults.len(), 2, "{faults:?}");
        let long = "fn f() {\n".to_string() + &"    x();\n".repeat(900) + "}\n";
        faults.clear();
        check_file("ports", "ports/x/src/y.rs", &long, &mut faults);
        assert_eq!(faults.len(), 2, "{faults:?}");
    }
}
