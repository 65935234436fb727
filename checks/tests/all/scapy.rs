//! Scapy's RoCE layer computes the same ICRC and reads the fields that we wrote. Needs the package
//! python3-scapy.

use longhaul_checks::outside::output;
use longhaul_checks::packets::{Fields, capture, every_kind};
use longhaul_wire::Opcode;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// Output of Debian's Python and scapy for `file`.
fn read_back(file: &[u8]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scapy_packets.py");
    output(Command::new("/usr/bin/python3").arg(script), "python3-scapy", file)
}

fn expected(fields: &Fields, frame: &[u8]) -> String {
    let bth = fields.bth;
    // Scapy parses an AETH only in an ACK, not in a READ response.
    let is_ack = bth.opcode == Opcode::RC_ACK;
    let name = if bth.opcode == Opcode::CNP {
        "cnp"
    } else if is_ack {
        "ack"
    } else {
        "other"
    };
    let (syndrome, msn) = match fields.aeth {
        Some(aeth) if is_ack => (i32::from(aeth.syndrome.write()), aeth.msn.get() as i32),
        _ => (-1, -1),
    };
    let icrc = frame[frame.len() - 4..].iter().fold(String::new(), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    });
    format!(
        "{name} {} {} {} {} {} {} {} {} {syndrome} {msn} {icrc}",
        bth.opcode.0,
        u8::from(bth.solicited),
        u8::from(bth.migreq),
        bth.pad,
        u8::from(bth.becn),
        bth.dest_qp.get(),
        u8::from(bth.ack_request),
        bth.psn.get(),
    )
}

#[test]
fn computes_the_icrc_and_reads_the_fields_of_every_kind_of_packet() {
    let packets = every_kind();
    let frames: Vec<_> = packets.iter().map(Fields::build).collect();
    let lines = read_back(&capture(&frames));
    assert_eq!(lines.lines().count(), packets.len());
    for ((fields, frame), line) in packets.iter().zip(&frames).zip(lines.lines()) {
        assert_eq!(line, expected(fields, frame), "{fields:?}");
    }
}
