//! Faults of boxes in service: accelerators that end while flows run and are restarted, and floods
//! of RoCEv2 frames that belong to no flow. Between our own RNICs in network namespaces; skipped,
//! loudly, if those cannot be created.

use longhaul_checks::network::{LEFT, LIMIT, Network, RIGHT, Raw, RunningBox};
use longhaul_checks::packets::{Fields, paths};
use longhaul_checks::segments::{Proof, Rule, Segments, prove};
use longhaul_checks::{Finished, process, require};
use longhaul_units::{Qpn, Rng, SplitMix64};
use longhaul_wire::{Opcode, Path};
use serde_json::Value;
use std::net::Ipv4Addr;
use std::path::PathBuf;

/// An ACK timeout of a quarter of a second, eight times: the processors may be busy.
const PATIENT: &str = "-u 16";

/// A counter of an accelerator.
fn counter(status: &Value, name: &str) -> u64 {
    let count = status["pairs"][0]["accelerator"]["counters"][name].as_u64();
    count.unwrap_or_else(|| panic!("no counter {name}: {status:#}"))
}

fn stored_bytes(status: &Value) -> u64 {
    status["pairs"][0]["accelerator"]["stored_bytes"].as_u64().expect("an accelerator")
}

/// Accelerators around a fibre of 1000 km; the fibre, and a box in front of each accelerator,
/// record the four segments.
struct Chain<'a> {
    network: &'a Network,
    accelerators: [RunningBox; 2],
    others: Vec<RunningBox>,
    files: [PathBuf; 4],
}

const NAMES: [&str; 2] = ["near", "far"];

impl<'a> Chain<'a> {
    fn new(network: &'a Network) -> Self {
        let files = ["near-lan", "near-wan", "far-wan", "far-lan"]
            .map(|name| network.runtime.path().join(format!("{name}.pcap")));
        let [near_lan, near_wan, far_wan, far_lan] = files.each_ref().map(|file| file.display());
        let mut others = Vec::new();
        for (name, host, file) in [("near", "west", near_lan), ("far", "east", far_lan)] {
            others.push(network.start(&format!(
                "emulate --name {name}-lan --a {host} --b {},master --rate 100G --pcap-a {file} \
                 --pcap-frames 0",
                memif(network, name)
            )));
        }
        others.push(network.start(&format!(
            "emulate --a w2 --b e2 --distance 1000km --rate 200M --pcap-a {near_wan} \
             --pcap-b {far_wan} --pcap-frames 0"
        )));
        let accelerators = [0, 1].map(|end| accelerate(network, end));
        Chain { network, accelerators, others, files }
    }

    /// Unplugs the cable between accelerator `end` and the fibre, or plugs it in.
    fn plug(&self, end: usize, is_in: bool) {
        let (cable, state) = (["w2", "e2"][end], if is_in { "up" } else { "down" });
        self.network.middle.set(&format!("link set {cable} {state}"));
    }

    /// Waits until many acknowledged packets are undelivered.
    fn wait_until_full(&self) {
        self.network.wait_for(&self.accelerators[0], "packets in the store", |status| {
            stored_bytes(status) > 256 << 10
        });
    }

    /// Waits until, with the cable unplugged, more has been acknowledged than was sent before.
    fn wait_for_promises(&self) {
        let pseudo_acks = |status: &Value| counter(status, "pseudo_acks");
        let before = pseudo_acks(&self.network.status(&self.accelerators[0]));
        self.network.wait_for(
            &self.accelerators[0],
            "pseudo-ACKs of what cannot be delivered",
            |status| pseudo_acks(status) >= before + 20,
        );
    }

    /// Ends an accelerator by `signal` and starts another in its place.
    fn restart(&mut self, end: usize, signal: libc::c_int) -> Finished {
        let accelerator = &mut self.accelerators[end];
        accelerator.signal(signal);
        accelerator.program.wait(LIMIT);
        let ended = std::mem::replace(accelerator, accelerate(self.network, end));
        ended.program.finish(LIMIT)
    }

    /// Proof from the recordings. A box's acknowledged and undelivered packets are lost with it, as
    /// are others inside it, and then the responder's own answers fall behind the box's. Nothing
    /// may be changed, made up, duplicated or reordered. MigReq is not judged: boxes other than the
    /// accelerators record, so an accelerator may not have seen it. Neither is the MSN: a new box's
    /// fatal NAK has the responder's, because the old box's count is unknown.
    fn proof(self) -> Proof {
        for one in self.accelerators.into_iter().chain(self.others) {
            one.end();
        }
        let segments = Segments::open(self.files.each_ref().map(|file| Some(file.as_path())));
        let proof = prove(segments.expect("captures")).unwrap_or_else(|error| panic!("{error}"));
        let is_loss = |rule| {
            matches!(
                rule,
                Rule::AckedNeverArrived
                    | Rule::AckWentBack
                    | Rule::MigReqDiffers
                    | Rule::MsnWrong
                    | Rule::OtherLost
            )
        };
        let wrong: Vec<_> = proof.violations.iter().filter(|found| !is_loss(found.rule)).collect();
        assert!(wrong.is_empty(), "{wrong:#?}\n{:#?}", proof.flows);
        assert!(proof.violations_total as usize == proof.violations.len(), "{proof:#?}");
        proof
    }
}

fn memif(network: &Network, name: &str) -> String {
    format!("memif:{}", network.runtime.path().join(format!("{name}.sock")).display())
}

fn accelerate(network: &Network, end: usize) -> RunningBox {
    let (name, wan) = (NAMES[end], ["w1", "e1"][end]);
    let accelerator = network.start(&format!(
        "accelerate --name {name} --lan {},slave --wan {wan} --rate 200M --distance 1000km \
         --give-up 10s",
        memif(network, name)
    ));
    network.wait_for(&accelerator, "attached", |status| {
        status["pairs"][0]["ports"][0]["link_is_up"] == true
    });
    accelerator
}

mod an_accelerator_that_is_restarted {
    use super::*;

    /// At the requesters' side, with packets acknowledged: both programs fail, and new ones are
    /// accelerated.
    fn ends_its_flows(signal: libc::c_int, options: &str) {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("an accelerator that is restarted", 1500) else { return };
        let mut chain = Chain::new(&network);
        let transfer =
            network.begin(&format!("ib_write_bw {options} -s 65536 -m 1024 -n 1000000 {PATIENT}"));
        network.wait_for(&chain.accelerators[0], "a flow", |status| {
            counter(status, "stored_packets") > 2000
        });
        // Packets stored from here on are lost with the box.
        chain.plug(0, false);
        chain.wait_for_promises();
        let ended = chain.restart(0, signal);
        chain.plug(0, true);
        assert_eq!(ended.status.success(), signal == libc::SIGTERM, "{ended}");
        for program in [transfer.client, transfer.server] {
            let ended = program.finish(LIMIT);
            assert!(!ended.status.success(), "{ended}");
        }
        network.transfer(&format!("ib_write_bw {options} -s 65536 -m 1024 -n 40 {PATIENT}"), || {});
        let status = network.status(&chain.accelerators[0]);
        assert!(counter(&status, "pseudo_acks") > 0, "{status:#}");
        let proof = chain.proof();
        let lost: u64 =
            proof.flows.iter().map(|flow| flow.acknowledged.saturating_sub(flow.arrived)).sum();
        assert!(lost > 50, "nothing was lost: {:#?}", proof.flows);
    }

    #[test]
    fn in_order_ends_its_flows_with_errors_on_both_hosts() {
        // Both ends send: a server that only waits would never notice that its client has gone.
        ends_its_flows(libc::SIGTERM, "-R -b");
    }

    #[test]
    fn by_force_ends_its_flows_with_errors_on_both_hosts() {
        ends_its_flows(libc::SIGKILL, "");
    }

    /// It has acknowledged nothing to the requesters beyond the fibre.
    #[test]
    fn at_the_responders_side_ends_nothing() {
        require("ib_send_bw", "perftest");
        let Some(network) = Network::new("a far accelerator that is restarted", 1500) else {
            return;
        };
        let mut chain = Chain::new(&network);
        network.transfer(&format!("ib_send_bw -R -s 65536 -m 1024 -n 1200 {PATIENT}"), || {
            chain.wait_until_full();
            chain.plug(1, false);
            chain.restart(1, libc::SIGKILL);
            chain.plug(1, true);
        });
        let proof = chain.proof();
        let longest = proof.flows.iter().max_by_key(|flow| flow.sent).expect("a flow");
        assert_eq!((longest.sent, longest.confirmed), (1200 * 64, 1200 * 64), "{longest:#?}");
        assert!(
            longest.sequence_naks + longest.arrived_again > 0,
            "nothing was lost: {longest:#?}"
        );
    }
}

mod a_flood_of_packets_that_belong_to_nobody {
    use super::*;

    const FRAMES: u64 = 60_000;
    /// Permitted growth of a box's memory, in KiB: a few KiB for each of at most 4096 known flows,
    /// and frames that wait for room.
    const GROWTH_KIB_MAX: u64 = 64 << 10;

    fn resident_kib(of: &RunningBox) -> u64 {
        process::resident_kib(of.program.id()).expect("a process")
    }

    /// From `source` to `destination`, or with unused addresses.
    fn frame(rng: &mut SplitMix64, source: &str, destination: &str, opcode: Opcode) -> Vec<u8> {
        let known = rng.chance(0.5);
        let mut address = |known_as: &str| {
            if known {
                known_as.parse().expect("IPv4")
            } else {
                Ipv4Addr::from_bits(rng.next_u64() as u32)
            }
        };
        let (source, destination) = (address(source), address(destination));
        let path =
            Path { source_ip: source.into(), destination_ip: destination.into(), ..paths()[0] };
        let salt = rng.next_u64() as u32 & 0xffff;
        let mut fields = Fields::made_up(opcode, path, 64, salt);
        fields.bth.dest_qp = Qpn::new(rng.next_u64() as u32 & 0x00ff_ffff);
        let mut bytes = fields.build();
        if rng.chance(0.1) {
            // A wrong ICRC.
            *bytes.last_mut().expect("an ICRC") ^= 1;
        }
        bytes
    }

    /// Sends `frames` from each host and waits until their boxes have received them.
    fn send(network: &Network, boxes: [&RunningBox; 2], frames: u64) {
        let (left, right) = (Raw::open(&network.left, "eth0"), Raw::open(&network.right, "eth0"));
        let mut rng = SplitMix64::new(7);
        let before =
            boxes.map(|one| network.status(one)["pairs"][0]["ports"][0]["rx_frames"].as_u64());
        for number in 0..frames {
            let requests = [Opcode::RC_SEND_ONLY, Opcode::RC_WRITE_ONLY, Opcode::RC_READ_REQUEST];
            let request = requests[number as usize % requests.len()];
            left.send(&frame(&mut rng, LEFT, RIGHT, request));
            let answer = [Opcode::RC_ACK, Opcode::RC_READ_RESPONSE_ONLY][number as usize % 2];
            right.send(&frame(
                &mut rng,
                RIGHT,
                LEFT,
                if number % 4 == 0 { request } else { answer },
            ));
        }
        for (one, before) in boxes.into_iter().zip(before) {
            network.wait_for(one, "frames of the flood", |status| {
                let now = status["pairs"][0]["ports"][0]["rx_frames"].as_u64();
                // A socket's buffer may be full.
                now.zip(before).is_some_and(|(now, before)| now - before > frames / 2)
            });
        }
    }

    #[test]
    fn costs_bounded_memory_and_is_counted_and_hurts_nobody() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("a flood of packets", 1500) else { return };
        let near =
            network.start("accelerate --name near --lan west --wan w1 --rate 1G --distance 100km");
        let fibre = network.start("emulate --a w2 --b e2 --distance 100km --rate 1G");
        let far =
            network.start("accelerate --name far --lan east --wan e1 --rate 1G --distance 100km");
        // Memory is measured after the first use.
        network.transfer(&format!("ib_write_bw -R -s 65536 -m 1024 -n 200 {PATIENT}"), || {});
        let before = [&near, &far].map(resident_kib);
        network.transfer(&format!("ib_write_bw -R -s 65536 -m 1024 -n 2000 {PATIENT}"), || {
            send(&network, [&near, &far], FRAMES)
        });
        for (one, before) in [&near, &far].into_iter().zip(before) {
            let after = resident_kib(one);
            println!("{}: {before} KiB resident before, {after} KiB after", one.name);
            assert!(
                after < before + GROWTH_KIB_MAX,
                "{}: {before} KiB, then {after} KiB",
                one.name
            );
            let status = network.status(one);
            let flows =
                status["pairs"][0]["accelerator"]["flows"].as_array().map_or(0, Vec::len) as u64;
            let counted = [
                "flows_evicted",
                "flow_table_full",
                "rx_icrc_encapsulated",
                "passed",
                "flows_failed",
            ]
            .map(|name| (name, counter(&status, name)));
            println!(
                "{}: {flows} flows, {} bytes stored, {counted:?}",
                one.name,
                stored_bytes(&status)
            );
            assert!(flows <= 4096, "{flows} flows");
            assert!(
                counter(&status, "flows_evicted") + counter(&status, "flow_table_full") > 1000,
                "{status:#}"
            );
            assert!(counter(&status, "rx_icrc_encapsulated") > 1000, "{status:#}");
            assert_eq!(
                (counter(&status, "flows_failed"), counter(&status, "stored_lost")),
                (0, 0),
                "{status:#}"
            );
        }
        for one in [near, fibre, far] {
            one.end();
        }
    }

    /// The flood is between the hosts of the connection, and has ended.
    #[test]
    fn keeps_no_connection_from_being_learnt_from_its_traffic() {
        require("ib_write_bw", "perftest");
        let Some(network) = Network::new("a connection after a flood", 1500) else { return };
        let near = network.start("accelerate --name near --lan west --wan east");
        send(&network, [&near, &near], 2000);
        network.transfer(&format!("ib_write_bw -s 65536 -m 1024 -n 500 {PATIENT}"), || {});
        let status = network.status(&near);
        // On a busy machine a responder may be silent for so long that its flow is learnt again.
        assert!(counter(&status, "flows_from_traffic") >= 1, "{status:#}");
        near.end();
    }
}
