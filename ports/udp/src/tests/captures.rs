//! Tests with packets of kernel rxe, which numbers them in the IPv4 identification.

use std::net::UdpSocket;

use super::*;
use longhaul_wire::pcap;

fn capture(name: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/../../checks/captures/{name}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let frames = pcap::records(&bytes).map(|record| record.unwrap().data.to_vec());
    frames.filter(|frame| matches!(split(frame, frame.len()), Ok(Split::Roce { .. }))).collect()
}

/// The frame with IPv4 identification `id`, between these two addresses.
fn readdressed(frame: &[u8], from: IpAddr, to: IpAddr) -> Vec<u8> {
    let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) else { panic!("IPv4 is needed") };
    let mut frame = frame.to_vec();
    frame[26..30].copy_from_slice(&from.octets());
    frame[30..34].copy_from_slice(&to.octets());
    frame[34..36].copy_from_slice(&4791_u16.to_be_bytes());
    set_icrc(&mut frame);
    frame
}

/// For every packet that rxe sent, the port derives the headers that a UDP receiver does not see.
#[test]
fn identifications_of_rxe_are_found() {
    let [from, to] = [own_ipv4(), own_ipv4()];
    let rxe = UdpSocket::bind((from, 4791)).unwrap();
    let mut port = port(to);
    let mut identified = 0;
    for name in ["rc_all_ops_mtu1024.pcap", "uc_all_ops_mtu1024.pcap", "ud_pingpong.pcap"] {
        for original in capture(name) {
            check_icrc(&original);
            let sent = readdressed(&original, from, to);
            rxe.send_to(&sent[42..], (to, 4791)).unwrap();
            let received = take(&mut port, 1, 1);
            assert_eq!(received[0][18..20], sent[18..20], "identification");
            check_icrc(&received[0]);
            assert_eq!(received[0][42..], sent[42..]);
            identified += u64::from(sent[18..20] != [0, 0]);
        }
    }
    assert!(identified > 50, "{identified} packets with an identification");
    let counters = port.udp_counters();
    assert_eq!((counters.rx_identified, counters.rx_unidentified), (identified, 0));
}

/// A frame with an identification gets the one that the kernel sends, and its ICRC is adjusted.
#[test]
fn identifications_that_the_kernel_will_not_send_are_replaced() {
    let (addresses, mut a, mut b) = pair();
    for original in capture("rc_all_ops_mtu1024.pcap").iter().take(100) {
        let sent = readdressed(original, addresses[0], addresses[1]);
        give(&mut a, &sent);
        a.flush().unwrap();
        let received = take(&mut b, 1, 1);
        assert_eq!(received[0][18..20], [0, 0]);
        check_icrc(&received[0]);
    }
    assert_eq!(b.udp_counters().rx_identified, 0);
}
