//! Lines have at most 100 columns, and each source file begins with a description.

use super::sources::{CODE_FOLDERS, find};
use std::fs;
use std::path::Path;

/// Columns of a line, counted in characters.
const COLUMNS_MAX: usize = 100;
/// Folders with documents, in addition to the root and those with code.
const FOLDERS: &[&str] = &["docs", "labs", "packaging"];
/// Generated documents.
const WRITTEN: &[&str] = &["docs/perftest-matrix.md", "docs/settings.md"];

pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut faults = Vec::new();
    let documents = fs::read_dir(root).map_err(|e| format!("{}: {e}", root.display()))?;
    let documents = documents.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<_> =
        documents.filter(|path| path.extension().is_some_and(|e| e == "md")).collect();
    for folder in CODE_FOLDERS.iter().chain(FOLDERS) {
        find(&root.join(folder), "rs", &mut files)?;
        find(&root.join(folder), "md", &mut files)?;
    }
    for file in files {
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        if name.ends_with(".md") {
            check_document(&name, &text, &mut faults);
        } else {
            check_source(&name, &text, &mut faults);
        }
    }
    Ok(faults)
}

/// Table rows and URLs in comments may exceed the limit.
fn check_source(name: &str, text: &str, faults: &mut Vec<String>) {
    if !text.starts_with("//! ") {
        faults.push(format!("{name}: does not begin with a line of //! that says what it holds"));
    }
    for (number, line) in text.lines().enumerate() {
        let code = line.trim_start();
        let is_row = code.starts_with("//! |") || code.starts_with("/// |");
        if !is_row && !line.contains("://") {
            check_line(name, number, line, faults);
        }
    }
}

/// Only prose is limited: tables, code and lines with a URL are exempt.
fn check_document(name: &str, text: &str, faults: &mut Vec<String>) {
    if WRITTEN.contains(&name) {
        return;
    }
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        let words = line.trim_start();
        if words.starts_with("```") {
            is_code = !is_code;
        }
        let is_indented = line.starts_with("    ");
        if !is_code && !is_indented && !words.starts_with('|') && !line.contains("://") {
            check_line(name, number, line, faults);
        }
    }
}

fn check_line(name: &str, number: usize, line: &str, faults: &mut Vec<String>) {
    let columns = line.chars().count();
    if columns > COLUMNS_MAX {
        faults.push(format!("{name}:{}: {columns} columns, more than {COLUMNS_MAX}", number + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(name: &str, text: &str) -> Vec<String> {
        let mut faults = Vec::new();
        if name.ends_with(".md") {
            check_document(name, text, &mut faults);
        } else {
            check_source(name, text, &mut faults);
        }
        faults
    }

    #[test]
    fn a_source_file_says_what_it_holds_in_its_first_line() {
        assert_eq!(faults_of("a.rs", "//! Holds nothing.\n"), [""; 0]);
        assert_eq!(faults_of("a.rs", "use std::fs;\n\n//! Late.\n").len(), 1);
        assert_eq!(faults_of("a.rs", "").len(), 1);
    }

    #[test]
    fn columns_are_characters() {
        let line = |columns: usize| format!("//! A\n// {}\n", "é".repeat(columns - 3));
        assert_eq!(faults_of("a.rs", &line(100)), [""; 0]);
        assert_eq!(faults_of("a.rs", &line(101)), ["a.rs:2: 101 columns, more than 100"]);
    }

    #[test]
    fn rows_of_tables_and_addresses_may_be_longer() {
        let long = "x".repeat(100);
        for line in [format!("/// | {long} |"), format!("// https://{long}")] {
            assert_eq!(faults_of("a.rs", &format!("//! A\n    {line}\n")), [""; 0]);
        }
        assert_eq!(faults_of("a.rs", &format!("//! A\n/// {long}\n")).len(), 1);
    }

    #[test]
    fn of_documents_only_prose_wraps() {
        let long = "x ".repeat(60);
        for text in
            [format!("| {long} |"), format!("```\n{long}\n```"), format!("a\n\n    {long}\n")]
        {
            assert_eq!(faults_of("a.md", &text), [""; 0]);
        }
        assert_eq!(faults_of("a.md", &format!("```\n{long}\n```\n{long}")).len(), 1);
        assert_eq!(faults_of("a.md", &format!("- {long}")).len(), 1);
    }
}
