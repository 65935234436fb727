//! `longhaul doctor` on captures of Linux's rxe: counts agree with Wireshark's dissector, and other
//! formats of the same capture yield the same. Needs the packages tshark and wireshark-common
//! (editcap, mergecap).

use longhaul_checks::RuntimeDir;
use longhaul_checks::outside::{output, scratch_file};
use longhaul_wire::pcap::{self, LinkType, RecordHeader};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn captures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "pcap")).collect();
    files.sort();
    assert!(files.len() >= 14);
    files
}

fn capture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("captures").join(name)
}

/// Standard output and exit code of `longhaul doctor`.
fn doctor(arguments: &[&str], capture: &Path) -> (String, Option<i32>) {
    let runtime = RuntimeDir::new();
    let done = runtime.longhaul("doctor").args(arguments).arg(capture).output().unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(!errors.contains("panicked"), "{}: {errors}", capture.display());
    (String::from_utf8(done.stdout).unwrap(), done.status.code())
}

fn report(capture: &Path) -> Value {
    let (json, _) = doctor(&["--json"], capture);
    serde_json::from_str(&json).unwrap_or_else(|e| panic!("{}: {e}", capture.display()))
}

/// Sum of a number over all flows.
fn sum(report: &Value, pointer: &str) -> u64 {
    report["flows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|flow| flow.pointer(pointer).unwrap().as_u64().unwrap())
        .sum()
}

/// Opcode, syndrome and destination QP of a packet.
type Dissected = (u8, Option<u8>, u32);

/// Every packet, as dissected by tshark.
fn dissect(capture: &Path) -> Vec<Dissected> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(capture).args([
        "-n",
        "-T",
        "fields",
        "-E",
        "separator=|",
        "-E",
        "occurrence=f",
    ]);
    for field in ["infiniband.bth.opcode", "infiniband.aeth.syndrome", "infiniband.bth.destqp"] {
        command.args(["-e", field]);
    }
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    let parse = |line: &str| {
        let fields: Vec<_> = line.split('|').map(number).collect();
        Some((fields[0]? as u8, fields[1].map(|s| s as u8), fields[2]?))
    };
    output(&mut command, "tshark", &[]).lines().filter_map(parse).collect()
}

#[test]
fn counts_agree_with_tshark() {
    for capture in captures() {
        let (report, packets) = (report(&capture), dissect(&capture));
        let name = capture.display();
        let count = |wanted: &dyn Fn(&Dissected) -> bool| {
            packets.iter().filter(|p| wanted(p)).count() as u64
        };
        assert_eq!(report["capture"]["roce_packets"], packets.len(), "{name}");
        // The connection manager uses QP1; the upper three bits are the transport.
        let is_answer = |p: &Dissected| p.0 < 0x20 && (0x0d..=0x12).contains(&p.0);
        assert_eq!(
            sum(&report, "/request_packets"),
            count(&|p| p.2 != 1 && !is_answer(p)),
            "{name}: requests"
        );
        assert_eq!(sum(&report, "/response_packets"), count(&is_answer), "{name}: answers");
        let acks = count(&|p| p.0 == 0x11 && p.1.is_some_and(|s| s < 0x20));
        assert_eq!(sum(&report, "/counters/acks"), acks, "{name}: ACKs");
        let rnr = count(&|p| p.1.is_some_and(|s| (0x20..0x40).contains(&s)));
        assert_eq!(sum(&report, "/counters/rnr_naks"), rnr, "{name}: RNR NAKs");
        let sequence = count(&|p| p.1 == Some(0x60));
        assert_eq!(sum(&report, "/counters/sequence_naks"), sequence, "{name}: sequence NAKs");
    }
}

#[test]
fn other_forms_of_a_capture_tell_the_same() {
    let original = capture("rc_write_loss5pct_16k.pcap");
    let expected = report(&original);
    for (name, arguments) in [
        ("ng.pcapng", &["-F", "pcapng"][..]),
        ("ns.pcap", &["-F", "nsecpcap"]),
        ("cut.pcap", &["-F", "pcap", "-s", "80"]),
    ] {
        let converted = scratch_file(name, &[]);
        output(
            Command::new("editcap").args(arguments).arg(&original).arg(&converted),
            "wireshark-common",
            &[],
        );
        let found = report(&converted);
        for flow in 0..expected["flows"].as_array().unwrap().len() {
            assert_eq!(
                found["flows"][flow]["findings"], expected["flows"][flow]["findings"],
                "{name}"
            );
            assert_eq!(
                found["flows"][flow]["counters"], expected["flows"][flow]["counters"],
                "{name}"
            );
        }
        std::fs::remove_file(&converted).unwrap();
    }
}

#[test]
fn interfaces_of_one_pcapng_file_are_read_together() {
    let parts = ["rc_psn_wrap.pcap", "rc_rnr_nak_then_ok.pcap"].map(capture);
    let merged = scratch_file("merged.pcapng", &[]);
    output(
        Command::new("mergecap")
            .args(["-F", "pcapng", "-I", "none", "-w"])
            .arg(&merged)
            .args(&parts),
        "wireshark-common",
        &[],
    );
    let found = report(&merged);
    assert_eq!(found["capture"]["roce_packets"], 26 + 19);
    assert_eq!(found["flows"].as_array().unwrap().len(), 2);
    assert_eq!(sum(&found, "/counters/rnr_naks"), 7);
    assert_eq!(sum(&found, "/counters/psn_wraps"), 1);
    std::fs::remove_file(&merged).unwrap();
}

#[test]
fn exit_codes_say_how_it_went() {
    assert_eq!(doctor(&[], &capture("rc_psn_wrap.pcap")).1, Some(0));
    assert_eq!(doctor(&[], &capture("rc_nak_remote_access_read.pcap")).1, Some(1));
    let whole = std::fs::read(capture("rc_psn_wrap.pcap")).unwrap();
    let cut = scratch_file("truncated.pcap", &whole[..whole.len() - 3]);
    let (text, code) = doctor(&[], &cut);
    assert_eq!(code, Some(2));
    assert!(
        text.contains("The file ends inside a record") && text.contains("after 25 frames"),
        "{text}"
    );
    std::fs::remove_file(&cut).unwrap();
    assert_eq!(doctor(&[], Path::new("/does/not/exist")), (String::new(), Some(2)));
    assert_eq!(doctor(&["--flow", "9"], &capture("rc_psn_wrap.pcap")), (String::new(), Some(2)));
    let unwritable = ["--svg", "/does/not/exist/flow.svg"];
    assert_eq!(doctor(&unwritable, &capture("rc_psn_wrap.pcap")), (String::new(), Some(3)));
}

#[test]
fn what_is_no_capture_of_rocev2_is_answered_with_what_it_is() {
    let file = |link_type: u16, captured_len: u32| {
        let mut bytes = pcap::file_header(LinkType(link_type), 65_535).to_vec();
        let header = RecordHeader { timestamp_ns: 1, captured_len, original_len: captured_len };
        bytes.extend(header.write());
        // A broadcast ARP frame.
        bytes.extend([&[0xff; 6][..], &[2; 6], &[0x08, 0x06], &[0; 46]].concat());
        bytes
    };
    for (name, bytes, code, parts) in [
        ("arp.pcap", file(1, 60), 0, &["has no RoCEv2", "ARP", "tcpdump -i"][..]),
        ("wifi.pcap", file(105, 60), 0, &["has no RoCEv2", "link type 105", "read are Ethernet"]),
        (
            "huge.pcap",
            file(1, u32::MAX - 15),
            2,
            &["damaged", "at byte 24", "4294967280 captured bytes"],
        ),
        ("text.pcap", b"a text, and not a short one".to_vec(), 2, &[]),
        ("empty.pcap", Vec::new(), 2, &[]),
    ] {
        let path = scratch_file(name, &bytes);
        let (text, found) = doctor(&[], &path);
        assert_eq!(found, Some(code), "{name}: {text}");
        for part in parts {
            assert!(text.contains(part), "{name}: no '{part}': {text}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_flow_is_drawn() {
    let svg = scratch_file("flow.svg", &[]);
    let (text, code) =
        doctor(&["--svg", svg.to_str().unwrap()], &capture("rc_write_512B_delay5ms_td128.pcap"));
    assert_eq!(code, Some(0));
    assert!(text.contains("128 messages of one packet each"), "{text}");
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.matches("<circle").count() > 200);
    std::fs::remove_file(&svg).unwrap();
}
