//! The documentation describes every counter as declared.

use longhaul_seal::DropReason;

#[test]
fn drops_are_described_as_they_are_declared() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/wan-encryption.md");
    let text = std::fs::read_to_string(path).expect("docs/wan-encryption.md");
    let rows = text.lines().skip_while(|line| !line.starts_with("| counter |")).skip(2);
    let rows: Vec<_> = rows.take_while(|line| line.starts_with('|')).collect();
    assert!(!rows.is_empty());
    for row in rows {
        let declared = DropReason::ALL.iter().find(|reason| {
            let meaning = reason.meaning().trim_end_matches('.');
            *row == format!("| `{}` | {meaning} |", reason.name())
        });
        assert!(declared.is_some(), "{row}");
    }
}
