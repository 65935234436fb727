//! Failures of a box and their repair: cells of the failure suite that no other test has. All flows
//! run again after the repair, and the TCP connection does not end (`Cell::run`).

use longhaul_checks::network::failures::{Cell, Failure, Ports, Topology};
use longhaul_checks::require;

/// Arrivals of RoCE, other datagrams and TCP before the repair. `None`: skipped.
fn meanwhile(failure: Failure, topology: Topology) -> Option<[usize; 3]> {
    require("ib_write_bw", "perftest");
    let cell = Cell { failure, topology, ports: Ports::Packet };
    let outcome = cell.run(&format!("{topology}: {failure}"))?;
    Some(outcome.meanwhile.expect("a failure that is repaired"))
}

#[test]
fn a_wrong_key_stops_roce_and_nothing_else_until_it_is_right() {
    let Some([roce, other, tcp]) = meanwhile(Failure::WrongKey, Topology::InLine) else { return };
    assert_eq!(roce, 0, "in the clear");
    assert!(other > 0 && tcp > 0, "{other} datagrams, {tcp} pieces of a stream");
}

#[test]
fn a_full_store_stops_no_other_traffic_and_its_flow_ends_well() {
    let Some(flows) = meanwhile(Failure::FullStore, Topology::InLine) else { return };
    assert!(flows.iter().all(|arrivals| *arrivals > 0), "{flows:?}");
}

#[test]
fn routing_goes_around_a_box_without_power() {
    let Some(flows) = meanwhile(Failure::PowerCut, Topology::Routes) else { return };
    assert!(flows.iter().all(|arrivals| *arrivals > 0), "{flows:?}");
}
