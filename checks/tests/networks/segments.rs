//! Captures of all four segments of a path prove that its accelerators behaved correctly. Between
//! our own RNICs in network namespaces; skipped, loudly, if those cannot be created.

use longhaul_checks::network::{Network, RunningBox};
use longhaul_checks::require;
use longhaul_checks::segments::{End, Proof, Segments, prove};
use std::path::PathBuf;

/// Accelerators around a fibre of 100 km, each port recorded.
fn chain(network: &Network, loss: &str) -> ([RunningBox; 3], [PathBuf; 4]) {
    let files = ["near-lan", "near-wan", "far-wan", "far-lan"]
        .map(|name| network.runtime.path().join(format!("{name}.pcap")));
    let [near_lan, near_wan, far_wan, far_lan] = files.each_ref().map(|file| file.display());
    let accelerate = "accelerate --rate 1G --distance 100km --pcap-frames 0";
    let boxes = [
        network.start(&format!(
            "{accelerate} --name near --lan west --wan w1 --pcap-lan {near_lan} \
             --pcap-wan {near_wan}"
        )),
        network.start(&format!("emulate --a w2 --b e2 --distance 100km --rate 1G {loss}")),
        network.start(&format!(
            "{accelerate} --name far --lan east --wan e1 --pcap-lan {far_lan} --pcap-wan {far_wan}"
        )),
    ];
    (boxes, files)
}

/// Runs `program` through the chain, with traffic other than RoCEv2 beside it.
fn run(network: &Network, loss: &str, program: &str) -> Proof {
    let (boxes, files) = chain(network, loss);
    network.transfer(program, || {
        if loss.is_empty() {
            network.stream(1 << 20);
        }
    });
    for one in boxes {
        one.end();
    }
    let segments =
        Segments::open(files.each_ref().map(|file| Some(file.as_path()))).expect("captures");
    let proof = prove(segments).unwrap_or_else(|error| panic!("{error}"));
    assert!(
        proof.holds(),
        "{program}: violations {:#?} of {}; {} responses and {} requests unplaced; flows {:#?}",
        proof.violations.iter().take(20).collect::<Vec<_>>(),
        proof.violations_total,
        proof.responses_unpaired,
        proof.requests_unplaced,
        proof.flows
    );
    proof
}

#[test]
fn without_loss_prove_every_rule_for_writes_sends_and_reads() {
    require("ib_write_bw", "perftest");
    let Some(network) = Network::new("captures of four segments", 1500) else { return };
    for (program, accelerated) in [
        ("ib_write_bw -R -s 65536 -m 1024 -n 100", true),
        ("ib_send_bw -s 10000 -m 1024 -n 300 -q 2 -u 18", true),
        ("ib_write_bw -R -b -s 5000 -m 512 -n 200", true),
        ("ib_read_bw -R -s 65536 -m 1024 -n 30", false),
    ] {
        let proof = run(&network, "", program);
        let carrying: Vec<_> = proof.flows.iter().filter(|flow| flow.sent > 20).collect();
        assert!(!carrying.is_empty(), "{program}: {proof:#?}");
        for flow in &carrying {
            assert_eq!(flow.end, End::Delivered, "{program}: {flow:#?}");
            assert_eq!(
                (flow.sent, flow.confirmed),
                (flow.arrived, flow.arrived),
                "{program}: {flow:#?}"
            );
            assert_eq!(flow.pseudo_acks > 0, accelerated, "{program}: {flow:#?}");
        }
        let carried: u64 = proof.boxes.iter().flat_map(|passage| passage.carried).sum();
        assert!(carried > 100, "{program}: {:#?}", proof.boxes);
    }
}

#[test]
fn with_loss_prove_that_every_byte_arrives_once_and_in_order() {
    require("ib_write_bw", "perftest");
    let Some(network) = Network::new("captures of four segments with loss", 1500) else { return };
    // Not WRITEs: their server exits when the client says so through another QP, possibly before
    // stored packets arrive.
    let proof = run(&network, "--loss 0.004", "ib_send_bw -R -s 65536 -m 1024 -n 40");
    let flow = proof.flows.iter().max_by_key(|flow| flow.sent).expect("a flow");
    assert_eq!((flow.sent, flow.arrived, flow.confirmed), (40 * 64, 40 * 64, 40 * 64), "{flow:#?}");
    assert_eq!(flow.arrived_bytes, 40 * 65536);
    assert!(flow.arrived_behind_a_gap > 0 && flow.sequence_naks > 0, "nothing was lost: {flow:#?}");
    assert!(flow.by_connection_manager && flow.pseudo_acks > 0, "{flow:#?}");
}
