//! The reduced form of each preset, in a lab.

use super::*;

/// A preset's reduced form has a result of each run, and published figures beside them.
fn reduced(name: &str, runs: usize) -> Value {
    require("ib_write_bw", "perftest");
    let _turn = Turn::take();
    let place = Place::new("");
    let mut done = json(&place.succeed(&format!("{name} --reduced --out o --json")));
    assert_eq!((&done["measured"], &done["failed"]), (&runs.into(), &Value::Array(vec![])));
    assert_eq!(place.results().len(), runs);
    let again = place.succeed(&format!("{name} --reduced --out o"));
    assert!(again.stdout.contains("Published in "), "{again}");
    let text = place.text();
    let description: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    done["description"] = description["description"].clone();
    done
}

fn compared(done: &Value) -> usize {
    let published = done["published"].as_array().unwrap();
    published.iter().filter(|one| one["measured"].is_number()).count()
}

#[test]
fn iown1_step1_runs_reduced() {
    assert_eq!(compared(&reduced("iown1-step1", 6)), 5);
}

#[test]
fn iown2_c1_runs_reduced() {
    let done = reduced("iown2-c1", 6);
    assert_eq!(compared(&done), 18);
    // The means, for reports.
    assert_eq!(done["description"]["published"].as_array().unwrap().len(), 6);
}

#[test]
fn iown2_d1_runs_reduced() {
    let done = reduced("iown2-d1", 6);
    assert_eq!(compared(&done), 6);
    // The lab's fibre is as long as the document's, and half a round trip of 8 bytes is its delay.
    let short = |one: &&Value| one["point"]["message_bytes"] == 2 && one["measured"].is_number();
    for one in done["published"].as_array().unwrap().iter().filter(short) {
        assert!(one["measured"].as_f64() > Some(1.9e6), "{one}");
    }
}

#[test]
fn thesis_5_2_runs_reduced() {
    assert_eq!(compared(&reduced("thesis-5.2", 5)), 1);
}

#[test]
fn presets_are_listed() {
    let place = Place::new("");
    let list = place.succeed("--list").stdout;
    for name in ["iown1-step1", "iown2-c1", "iown2-d1", "thesis-5.2", "storage"] {
        assert!(list.contains(name), "{list}");
    }
    let points = json(&place.succeed("iown2-c1 --list --json --set qps=1,2"));
    assert_eq!(points["points"].as_array().unwrap().len(), 3 * 12 * 2);
    let refused = place.run("iown2-c1 --list --set x=1");
    assert!(refused.stderr.contains("--set x=1: no axis is called 'x'"), "{refused}");
}
