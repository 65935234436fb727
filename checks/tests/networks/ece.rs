//! Enhanced connection establishment (ECE) through a box: REQ and REP of Linux, with the offer of a
//! ConnectX put into them.

use longhaul_checks::network::{LIMIT, Network, Raw, RunningBox};
use longhaul_wire::mad::{Attribute, Ece, MAD_LEN, Mad};
use longhaul_wire::{ICRC_LEN, Split, Udp, icrc, pcap, split};
use std::path::Path;

/// Ethernet, IPv4, UDP, BTH and DETH.
const MAD_AT: usize = 14 + 20 + 8 + 12 + 8;
const OFFER: Ece = Ece { vendor_id: 0x15b3, options: 0x2000_0001 };

/// A message of a capture of Linux, with `ece` and a right ICRC.
fn message(frame: &[u8], attribute: Attribute, ece: Ece) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let mad = frame[MAD_AT..].first_chunk_mut::<MAD_LEN>().expect("a MAD");
    ece.write(mad, attribute);
    let Ok(Split::Roce { layout, .. }) = split(&frame, frame.len()) else { panic!("no RoCEv2") };
    let udp = Udp::from(layout);
    udp.set_checksum(&mut frame, 0);
    let end = frame.len();
    let sum = icrc::of_frame(&frame, &layout, end);
    frame[end - ICRC_LEN..].copy_from_slice(&sum);
    frame
}

/// REQ and REP of Linux, each with `ece`.
fn req_and_rep(ece: Ece) -> [Vec<u8>; 2] {
    let name = "captures/cm_rc_perftest_write_5000B.pcap";
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let file = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let frames: Vec<Vec<u8>> =
        pcap::records(&file).map(|record| record.expect("whole").data.to_vec()).collect();
    let of = |attribute: Attribute| {
        let is_it = |frame: &&Vec<u8>| {
            let mad: Option<&Mad> = frame.get(MAD_AT..).and_then(<[u8]>::first_chunk);
            frame.len() == MAD_AT + MAD_LEN + ICRC_LEN
                && mad.is_some_and(|mad| mad[17] == attribute as u8)
        };
        message(frames.iter().find(is_it).expect("in the capture"), attribute, ece)
    };
    [of(Attribute::Req), of(Attribute::Rep)]
}

/// Sends REQ and REP, both with ECE, through a box, and returns what arrives.
fn through(network: &Network) -> [Vec<u8>; 2] {
    let (left, right) = (Raw::open(&network.left, "eth0"), Raw::open(&network.right, "eth0"));
    let [req, rep] = req_and_rep(OFFER);
    let is = |sent: &[u8], came: &[u8]| {
        came.len() == sent.len() && came.get(14..MAD_AT + 20) == sent.get(14..MAD_AT + 20)
    };
    left.send(&req);
    let came = right.receive(|came| is(&req, came));
    right.send(&rep);
    [came, left.receive(|came| is(&rep, came))]
}

fn cleared(network: &Network, one: &RunningBox) -> u64 {
    let status = network.status(one);
    let counters = &status["pairs"][0]["accelerator"]["counters"];
    counters["ece_cleared"].as_u64().unwrap_or_else(|| panic!("{status:#}"))
}

#[test]
fn is_cleared_in_both_messages_and_the_operator_is_told() {
    let Some(network) = Network::new("ECE through a box", 1500) else { return };
    let mut one = network.start("accelerate --name box --lan west --wan east");
    assert_eq!(through(&network), req_and_rep(Ece::NONE), "with right ICRCs");
    assert_eq!(cleared(&network, &one), 1);
    let status = network.status(&one);
    let advice = &status["pairs"][0]["accelerator"]["advice"];
    assert_eq!(advice[0]["advice"], "ece-cleared", "{status:#}");
    assert_eq!(advice.as_array().map(Vec::len), Some(1), "{status:#}");
    one.program.wait_for_output("advice (ece-cleared), requests of 10.10.0.1 to 10.10.0.2", LIMIT);
    one.end();
}

#[test]
fn passes_bit_for_bit_if_the_operator_says_so() {
    let Some(network) = Network::new("ECE through a box that leaves it", 1500) else { return };
    let one = network.start("accelerate --name box --lan west --wan east --ece pass");
    assert_eq!(through(&network), req_and_rep(OFFER));
    assert_eq!(cleared(&network, &one), 0);
    one.end();
}
