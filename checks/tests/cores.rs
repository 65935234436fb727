//! Boxes whose ports several cores share, between hosts that are network namespaces of this machine. Skipped, loudly, where
//! namespaces cannot be made, and where there is one processor.

use longhaul_checks::guest::skip_loudly;
use longhaul_checks::network::{LEFT, LIMIT, Network, RIGHT, RIGHT_6, Raw, RunningBox, Transfer};
use longhaul_checks::{Program, require};
use longhaul_wire::pair_hash;
use serde_json::Value;
use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

/// A second address of the left host: what it and the right host send each other is of the other core.
const LEFT_TOO: &str = "10.99.0.11";

fn network(what: &str, mtu: u32) -> Option<Network> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    if processors < 2 {
        skip_loudly(what, &"there is one processor");
        return None;
    }
    let network = Network::new(what, mtu)?;
    network.left.set(&format!("address add {LEFT_TOO}/24 dev eth0"));
    Some(network)
}

/// The core, of two, of what an address and the right host send each other.
fn core_of(address: &str) -> u32 {
    let octets = |text: &str| text.parse::<Ipv4Addr>().expect("an address").octets();
    let start = [&[2; 12], &[0x08, 0x00][..], &[0x45; 12]].concat();
    pair_hash(&[&start[..], &octets(address), &octets(RIGHT)].concat()) % 2
}

fn of_cores(status: &Value, counter: &str) -> Vec<u64> {
    let cores = status["pairs"][0]["cores"].as_array().expect("cores");
    cores.iter().map(|core| core[counter].as_u64().expect("a number")).collect()
}

/// RoCEv2 from both addresses of the left host.
fn transfers(network: &Network, mtu: u32) {
    for from in [LEFT, LEFT_TOO] {
        let write = format!("ib_write_bw -s 65536 -m {mtu} -n 400");
        let Transfer { client, server } = network.begin_from(from, &write);
        client.succeed(LIMIT);
        server.succeed(LIMIT);
    }
}

/// 400 messages of 64 KiB from each of two addresses, each of its own core.
fn are_accelerated_on_both_cores(network: &Network, one: &RunningBox, mtu: u64) {
    let status = network.status(one);
    let counters = &status["pairs"][0]["accelerator"]["counters"];
    assert!(counters["pseudo_acks"].as_u64() >= Some(2 * 100), "{status:#}");
    let flows = status["pairs"][0]["accelerator"]["flows"].as_array().expect("flows");
    for from in [LEFT, LEFT_TOO] {
        let flow = flows.iter().find(|flow| flow["requester"] == from);
        // What comes before a flow is learnt passes.
        let stored = flow.and_then(|flow| flow["stored_packets"].as_u64());
        assert!(stored >= Some(200 * 65536 / mtu), "{from}: {status:#}");
    }
    for received in of_cores(&status, "received_frames") {
        assert!(received > 400 * 65536 / mtu, "{status:#}");
    }
    assert_eq!(of_cores(&status, "ring_full"), [0, 0], "{status:#}");
    // What the ports took in is what the cores had, whatever came by other frames meanwhile.
    let of_ports: u64 = status["pairs"][0]["ports"]
        .as_array()
        .expect("ports")
        .iter()
        .filter_map(|port| port["rx_frames"].as_u64())
        .sum();
    assert_eq!(of_ports, of_cores(&status, "received_frames").iter().sum::<u64>(), "{status:#}");
}

#[test]
fn share_the_flows_of_an_accelerator() {
    require("ib_write_bw", "perftest");
    let Some(network) = network("an accelerator on two cores", 1500) else { return };
    assert_ne!(core_of(LEFT), core_of(LEFT_TOO), "choose other addresses");
    // Programs end when responders have everything: what is left then is no reason not to have drained.
    let command = "accelerate --name near --lan west --wan east --cores 0-1 --memory 512M --mode tail";
    let near = network.start(command);
    for to in [RIGHT, RIGHT_6] {
        network.round_trip(to, 1472 - 20, 20);
    }
    network.stream(16 << 20);
    transfers(&network, 1024);
    are_accelerated_on_both_cores(&network, &near, 1024);
    let status = network.status(&near);
    // The kernel gives each frame to the core that it belongs to.
    assert_eq!(of_cores(&status, "handed_over"), [0, 0], "{status:#}");
    assert_eq!(status["pairs"][0]["accelerator"]["stored_bytes_max"], 512 << 20, "{status:#}");
    let processors: Vec<&str> = status["pairs"][0]["cores"]
        .as_array()
        .expect("cores")
        .iter()
        .filter_map(|core| core["processors"].as_str())
        .collect();
    assert_eq!(processors, ["0", "1"]);
    let mut asked = network.middle.longhaul(&network.runtime, "box status near --prometheus");
    let metrics = Program::start(&mut asked).succeed(LIMIT).stdout;
    for core in 0..2 {
        let sample = format!(
            "longhaul_box_core_received_frames_total{{box=\"near\",pair=\"west-east\",core=\"{core}\"}}"
        );
        assert!(metrics.contains(&sample), "{metrics}");
    }
    let mut drain = network.middle.longhaul(&network.runtime, "accelerate drain near --timeout 20s");
    let drained = Program::start(&mut drain).succeed(LIMIT);
    assert_eq!(drained.stdout, "drained: the stores are empty\n", "{drained}");
    let ended = near.end();
    assert!(ended.stderr.contains("2 cores, each for its part"), "{ended}");
    assert!(ended.stderr.matches("lan port west is up").count() == 1, "{ended}");
    assert!(ended.stdout.contains("core 1 on processor 1: "), "{ended}");
}

/// Behind a circuit all frames are between the same two stations, so that all come by one queue.
#[test]
fn hand_over_what_comes_by_the_wrong_queue() {
    require("ib_write_bw", "perftest");
    let Some(network) = network("boxes on two cores that hand frames over", 1500) else { return };
    let mac = |interface: &str| {
        let read = || std::process::Command::new("ip").args(["-o", "link", "show", interface]).output();
        let shown = network.middle.inside(read).expect("ip").stdout;
        let shown = String::from_utf8_lossy(&shown).into_owned();
        shown
            .split_whitespace()
            .skip_while(|word| *word != "link/ether")
            .nth(1)
            .expect("an address")
            .to_owned()
    };
    // What a frame of the hosts takes on a circuit.
    for interface in ["w1", "w2"] {
        network.middle.set(&format!("link set {interface} mtu 1600"));
    }
    let near = format!("accelerate --name near --lan west --wan ethernet:w1,{} --cores 2", mac("w2"));
    let far = format!("accelerate --name far --lan east --wan ethernet:w2,{} --cores 2", mac("w1"));
    let boxes = [network.start(&near), network.start(&far)];
    network.round_trip(RIGHT, 1472 - 20, 20);
    network.round_trip(RIGHT_6, 1400, 20);
    network.stream(16 << 20);
    transfers(&network, 1024);
    for one in &boxes {
        let status = network.status(one);
        let (given, taken) = (of_cores(&status, "handed_over"), of_cores(&status, "taken_over"));
        assert!(given.iter().sum::<u64>() > 100, "{status:#}");
        // Frames under way from one to the other are few.
        assert!(taken.iter().sum::<u64>() + 100 > given.iter().sum::<u64>(), "{status:#}");
        let counters = &status["pairs"][0]["accelerator"]["counters"];
        assert!(counters["flows_failed"] == 0, "{status:#}");
    }
    let status = network.status(&boxes[0]);
    assert!(
        status["pairs"][0]["accelerator"]["counters"]["pseudo_acks"].as_u64() >= Some(2 * 100),
        "{status:#}"
    );
    for one in boxes {
        one.end();
    }
}

#[test]
fn have_a_direction_of_a_fibre_each() {
    let Some(network) = network("a fibre on two cores", 1500) else { return };
    let fibre = network.start("emulate --a west --b east --delay 5ms --cores 2");
    for to in [RIGHT, RIGHT_6] {
        let shortest = network.round_trip(to, 64, 10);
        assert!(shortest >= Duration::from_millis(10), "{to}: {shortest:?}");
    }
    network.stream(16 << 20);
    // In order, both ways, whatever they are and whoever they go between.
    let (left, right) = (Raw::open(&network.left, "eth0"), Raw::open(&network.right, "eth0"));
    for (from, to) in [(&left, &right), (&right, &left)] {
        let frame =
            |number: u8| [&[0xff; 6], &[2, 0, 0, 0, 0, number][..], &[0x88, 0xb5], &[number; 50]].concat();
        for number in 0..100 {
            from.send(&frame(number));
        }
        for number in 0..100 {
            let came = to.receive(|came| came.get(12..14) == Some(&[0x88, 0xb5]));
            assert_eq!(came, frame(number));
        }
    }
    // What ports and cores say is as old as their threads' last look around.
    network.wait_for(&fibre, "a direction for each core", |status| {
        let ports = status["pairs"][0]["ports"].as_array().expect("ports");
        let came: Vec<u64> = ports.iter().filter_map(|port| port["rx_frames"].as_u64()).collect();
        let directions = status["pairs"][0]["fibre"]["directions"].as_array().expect("directions");
        let entered = directions.iter().filter_map(|direction| direction["entered_frames"].as_u64());
        came.iter().all(|frames| *frames > 200)
            && of_cores(status, "received_frames") == came
            && of_cores(status, "handed_over") == [0, 0]
            && entered.eq(came)
    });
    fibre.end();
}

#[test]
fn that_cannot_be_had_are_refused_before_a_port_is_opened() {
    let Some(network) = network("cores that cannot be had", 1500) else { return };
    let accelerate = "accelerate --lan west --wan east";
    for (arguments, parts) in [
        (format!("{accelerate} --cores 0"), ["0 cores", "1 to 32"]),
        (format!("{accelerate} --cores 30"), ["30 cores are more than the processors", "may use, 0-"]),
        (format!("{accelerate} --cores 0,900"), ["processor 900 is not there", "may use 0-"]),
        (format!("{accelerate} --cores 1,1"), ["processor 1 is named twice", "--cores"]),
        (format!("{accelerate} --cores 2 --numa 77"), ["no NUMA node 77", "lscpu"]),
        (format!("{accelerate} --cores 0-1 --numa 0"), ["--numa beside --cores 0-1", "--cores 2"]),
        (format!("{accelerate} --cores 2 --transport"), ["--cores 2 with --transport", "leave --cores out"]),
        (format!("{accelerate} --cores 2 --flows 1"), ["flows_max is 0", "fewer cores"]),
        (format!("{accelerate} --cores 2 --pcap-lan /tmp/x"), ["a recording", "leave --cores out"]),
        ("accelerate --lan tap:lhq --wan east --cores 2".into(), ["port tap:lhq", "one queue"]),
        ("accelerate --lan memif:/tmp/x --wan east --cores 2".into(), ["port memif:/tmp/x", "one queue"]),
        ("emulate --a west --b east --cores 3".into(), ["3 cores for the two directions", "--cores 2"]),
    ] {
        let mut command = network.middle.longhaul(&network.runtime, &arguments);
        let done = Program::start(&mut command).finish(LIMIT);
        assert!(!done.status.success(), "{arguments}: {done}");
        assert!(parts.iter().all(|part| done.stderr.contains(part)), "{arguments}: {done}");
        assert_eq!(done.stderr.matches("longhaul: ").count(), 1, "{arguments}: {done}");
    }
}
