//! The tool of pscheduler: its executables between two hosts of a lab, with results in pscheduler's
//! schema.

use longhaul_checks::{TestLab, free_tcp_port, longhaul, require};
use serde_json::{Value, json};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Exit code of the validator if its module is missing.
const MISSING: i32 = 77;

fn tool(name: &str) -> Command {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/pscheduler/longhaul");
    let mut command = Command::new("/usr/bin/python3");
    command.arg(folder.join(name)).env("LONGHAUL_PSCHEDULER_CONF", "/nonexistent");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn start(mut command: Command, input: &Value) -> Child {
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
    child
}

#[track_caller]
fn answer(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn ask(name: &str, input: &Value) -> Value {
    answer(&start(tool(name), input).wait_with_output().unwrap())
}

/// Validates a result against the schema of pscheduler's throughput test.
#[track_caller]
fn validate(result: &Value) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/read_export.py");
    let mut command = Command::new("/usr/bin/python3");
    command.arg(script).arg("pscheduler");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = start(command, result).wait_with_output().unwrap();
    if done.status.code() == Some(MISSING) {
        let package = "python3-jsonschema";
        return longhaul_namespace::skip(format!(
            "{package} is missing: apt-get install {package}"
        ));
    }
    assert_eq!(&answer(&done), result);
}

#[test]
fn the_tool_says_what_it_can_run_and_how_long_it_takes() {
    let test = |spec: Value| json!({ "type": "throughput", "spec": spec });
    assert_eq!(ask("enumerate", &json!({}))["tests"], json!(["throughput"]));
    let plain = test(json!({ "schema": 7, "dest": "b", "duration": "PT1M30S", "parallel": 4 }));
    assert_eq!(ask("can-run", &plain), json!({ "can-run": true }));
    assert_eq!(ask("duration", &plain), json!({ "duration": "PT97S" }));
    for (input, reason) in [
        (json!({ "type": "rtt", "spec": {} }), "throughput"),
        (json!({ "type": "throughput" }), "no specification"),
        (test(json!({ "schema": 8, "dest": "b" })), "newer"),
        (test(json!({ "dest": "b", "udp": true })), "udp"),
        (test(json!({ "dest": "b", "duration": "soon" })), "soon"),
    ] {
        let refusal = ask("can-run", &input);
        assert_eq!(refusal["can-run"], false);
        assert!(refusal["reasons"].to_string().contains(reason), "{refusal}");
    }
    assert_eq!(
        ask("participant-data", &json!({ "participant": 1 })),
        json!({ "server-port": 18515 })
    );
    assert_eq!(ask("participant-data", &json!({ "participant": 0 })), json!({}));
    let third = start(tool("participant-data"), &json!({ "participant": 2 }));
    assert!(!third.wait_with_output().unwrap().status.success());
}

#[test]
fn both_ends_of_a_test_make_a_result_in_pschedulers_schema() {
    require("ib_write_bw", "perftest");
    let lab = TestLab::up("--distance 10km --rate 1G");
    let folder = lab.runtime().path();
    let input = |participant: u32, port: u16| {
        json!({
            "participant": participant,
            "participant-data": [{}, { "server-port": port }],
            "schedule": { "start": "2020-03-19T12:34:56Z", "duration": "PT10S" },
            "test": {
                "type": "throughput",
                "spec": { "schema": 1, "dest": "10.77.0.2", "duration": "PT1S", "parallel": 2 },
            },
        })
    };
    let port = free_tcp_port();
    let ends = [(0, "a"), (1, "b")].map(|(participant, host)| {
        let file = folder.join(format!("{host}.conf"));
        let words = lab.command(host, "");
        let words: Vec<_> = words.get_args().filter_map(|word| word.to_str()).collect();
        let prefix = format!("{} {}", longhaul().display(), words.join(" "));
        let options = "-R --qp-timeout=18";
        let text =
            format!("[longhaul]\nprefix = {prefix}\ndevice = longhaul0\noptions = {options}\n");
        fs::write(&file, text).unwrap();
        let mut command = tool("run");
        command.env("LONGHAUL_PSCHEDULER_CONF", file).env("XDG_RUNTIME_DIR", folder);
        start(command, &input(participant, port))
    });
    let results = ends.map(|end| answer(&end.wait_with_output().unwrap()));
    let merged = ask("merged-results", &json!({ "results": results }));
    assert_eq!(merged["succeeded"], true, "{merged}");
    let bits = merged["summary"]["summary"]["throughput-bits"].as_f64();
    assert!(bits > Some(1e6) && bits < Some(1e9), "{merged}");
    let diags = merged["diags"].as_str().unwrap();
    assert!(diags.contains("Participant 1:") && diags.contains("ib_write_bw"), "{diags}");
    validate(&merged);
}

#[test]
fn an_end_that_fails_has_its_reason_in_pschedulers_schema() {
    let input = json!({
        "participant": 0,
        "participant-data": [{}, { "server-port": 1 }],
        "schedule": { "start": "2020-03-19T12:34:56" },
        "test": { "type": "throughput", "spec": { "dest": "127.0.0.1", "duration": "PT1S" } },
    });
    let mut command = tool("run");
    command.env("PATH", "/nonexistent");
    let failed = answer(&start(command, &input).wait_with_output().unwrap());
    assert_eq!(failed["succeeded"], false);
    assert!(failed["error"].as_str().unwrap().contains("ib_write_bw"), "{failed}");
    validate(&failed);
}
