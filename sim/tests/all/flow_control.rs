//! Priority-based flow control in a network: one module per rule.

use crate::network::*;
use longhaul_sim::file::ScenarioFile;
use longhaul_sim::*;

/// Senders on one switch, and a receiver; the switch's and the senders' further keys.
fn incast(senders: usize, switch: &str, hosts: &str) -> String {
    let mut text = format!("[[switch]]\nname = \"leaf\"\nqueue = \"512K\"\n{switch}\n");
    let names = (1..=senders).map(|number| format!("s{number}")).chain(["sink".to_owned()]);
    for name in names {
        text += &format!("[[host]]\nname = \"{name}\"\nnic = \"ideal\"\n{hosts}\n");
        text += &format!("[[link]]\nbetween = [\"{name}\", \"leaf\"]\ndelay = \"200ns\"\n");
    }
    for number in 1..=senders {
        text += &format!(
            "[[flow]]\nname = \"f{number}\"\nfrom = \"s{number}\"\nto = \"sink\"\nop = \"write\"\n\
             size = \"64K\"\n\
             tx_depth = 64\niterations = 100\n"
        );
    }
    text
}

fn load(text: &str) -> Scenario {
    let file = ScenarioFile::parse("x.toml", text);
    let loaded = file.and_then(|file| file.load(&mut |name| Err(format!("no file {name}"))));
    loaded.unwrap_or_else(|error| panic!("{error}\n{text}")).scenario
}

fn simulate(text: &str) -> Outcome {
    run(load(text))
}

/// The port of a switch that leads to a station.
fn port<'a>(outcome: &'a Outcome, switch: &str, to: &str) -> &'a PortOutcome {
    let switch = outcome.switches.iter().find(|found| found.name == switch).unwrap();
    switch.ports.iter().find(|port| port.leads_to == to).unwrap()
}

fn ports(outcome: &Outcome) -> impl Iterator<Item = &PortOutcome> {
    outcome.switches.iter().flat_map(|switch| &switch.ports)
}

fn dropped(outcome: &Outcome) -> u64 {
    ports(outcome).map(PortOutcome::dropped_frames).sum()
}

fn pauses(outcome: &Outcome) -> u64 {
    ports(outcome).map(|port| port.pauses_sent).sum()
}

fn counter(outcome: &Outcome, host: &str, name: &str) -> u64 {
    let host = outcome.hosts.iter().find(|found| found.name == host).unwrap();
    host.counters.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count)
}

mod many_to_one {
    use super::*;

    #[test]
    fn without_flow_control_drops() {
        let outcome = simulate(&incast(8, "", ""));
        assert!(dropped(&outcome) > 100, "{outcome:#?}");
        assert_eq!(pauses(&outcome), 0);
    }

    #[test]
    fn with_it_drops_nothing_and_all_complete_at_the_rate_of_the_link() {
        let outcome = simulate(&incast(8, "pfc = \"on\"", ""));
        assert_eq!(dropped(&outcome), 0);
        assert!(outcome.flows.iter().all(|flow| flow.messages == 100));
        assert!(ports(&outcome).filter(|port| port.pauses_sent > 0).count() >= 7);
        for number in 1..=8 {
            let name = format!("s{number}");
            let told = port(&outcome, "leaf", &name);
            assert_eq!(
                counter(&outcome, &name, "rx_prio_pause"),
                told.pauses_sent + told.resumes_sent
            );
            assert!(counter(&outcome, &name, "rx_prio_pause_duration_ns") > 0);
            assert_eq!(counter(&outcome, &name, "packet_seq_err"), 0);
        }
        let goodput: f64 = outcome.flows.iter().map(|flow| flow.goodput_bps).sum();
        assert!(goodput > 94e9, "{goodput}");
    }

    #[test]
    fn drops_what_headroom_has_no_room_for_and_says_so() {
        let outcome = simulate(&incast(8, "pfc = \"on\"\npfc_headroom = \"8K\"", ""));
        let reasons: Vec<&str> =
            ports(&outcome).flat_map(|port| &port.drops).map(|(reason, _)| &**reason).collect();
        assert!(reasons.contains(&"headroom_full"), "{reasons:?}");
        assert!(reasons.iter().all(|reason| *reason == "headroom_full"), "{reasons:?}");
    }

    #[test]
    fn to_hosts_that_ignore_pauses_drops() {
        let outcome = simulate(&incast(8, "pfc = \"on\"", "pfc = \"off\""));
        assert!(dropped(&outcome) > 100);
        assert_eq!(counter(&outcome, "s1", "rx_prio_pause"), 0);
        assert!(counter(&outcome, "s1", "rx_unsupported_op_phy") > 0);
    }

    #[test]
    fn is_paused_less_often_where_dcqcn_acts_on_marks() {
        let marks = "pfc = \"on\"\necn = \"40K:200K:0.2\"";
        let alone = simulate(&incast(4, "pfc = \"on\"", "").replace("= 100\n", "= 2000\n"));
        let both = simulate(&incast(4, marks, "dcqcn = \"on\"").replace("= 100\n", "= 2000\n"));
        assert_eq!((dropped(&alone), dropped(&both)), (0, 0));
        assert!(ports(&both).map(|port| port.ecn_marked_frames).sum::<u64>() > 100);
        assert!((1..=4).all(|number| counter(&both, &format!("s{number}"), "rp_cnp_handled") > 0));
        assert!(10 * pauses(&both) < pauses(&alone), "{} of {}", pauses(&both), pauses(&alone));
    }
}

mod a_slow_receiver {
    use super::*;

    /// Receives a packet every 200 ns: 21 Gbit/s and more of the link's 100.
    fn slow(pfc: &str) -> String {
        format!(
            "[path]\ndelay = \"300ns\"\nnic = \"ideal\"\nrate = \"400G\"\n\
             receive_packet = \"200ns\"\n\
             receive_buffer = \"256K\"\npfc = \"{pfc}\"\n[[flow]]\nop = \"write\"\nsize = \"64K\"\n\
             iterations = 200\n"
        )
    }

    #[test]
    fn drops_what_its_buffer_does_not_take() {
        let outcome = simulate(&slow("off"));
        assert!(counter(&outcome, "b", "rx_discards_phy") > 0);
        assert!(counter(&outcome, "a", "packet_seq_err") > 0);
    }

    #[test]
    fn pauses_its_sender_and_drops_nothing() {
        let outcome = simulate(&slow("on"));
        assert_eq!(counter(&outcome, "b", "rx_discards_phy"), 0);
        assert!(counter(&outcome, "b", "tx_prio_pause") > 1);
        assert_eq!(
            counter(&outcome, "a", "rx_prio_pause"),
            counter(&outcome, "b", "tx_prio_pause")
        );
        assert_eq!(counter(&outcome, "a", "tx_retransmits"), 0);
        // 4096 bytes each 200 ns.
        let goodput = outcome.flows[0].goodput_bps;
        assert!((160e9..164e9).contains(&goodput), "{goodput}");
    }

    #[test]
    fn whose_link_is_too_long_for_its_buffer_is_refused_with_the_numbers() {
        let scenario = load(&slow("on").replace("300ns", "1ms"));
        let Err(error) = Simulation::new(scenario, |_, _| None) else { panic!("taken") };
        let error = error.to_string();
        assert!(error.contains("262144") && error.contains("headroom"), "{error}");
    }
}

mod two_switches {
    use super::*;

    /// Two hosts behind one switch send to a slow sink and to another host behind the next switch:
    /// the sink's pauses spread to the link between the switches and delay the other flow.
    fn victim(pfc: &str, between: &str) -> String {
        let mut text = String::new();
        for name in ["left", "right"] {
            text += &format!("[[switch]]\nname = \"{name}\"\nqueue = \"1M\"\n{pfc}\n");
        }
        for (name, switch) in [("a", "left"), ("b", "left"), ("free", "right")] {
            text += &format!("[[host]]\nname = \"{name}\"\nnic = \"ideal\"\n");
            text += &format!("[[link]]\nbetween = [\"{name}\", \"{switch}\"]\nrate = \"100G\"\n");
        }
        text += "[[host]]\nname = \"slow\"\nnic = \"ideal\"\n";
        text += "[[link]]\nbetween = [\"slow\", \"right\"]\nrate = \"10G\"\n";
        text += &format!(
            "[[link]]\nname = \"trunk\"\nbetween = [\"left\", \"right\"]\nrate = \"400G\"\n\
             {between}\n"
        );
        for (name, from, to) in [("culprit", "a", "slow"), ("victim", "b", "free")] {
            text += &format!(
                "[[flow]]\nname = \"{name}\"\nfrom = \"{from}\"\nto = \"{to}\"\nop = \"write\"\n\
                 size = \"64K\"\nduration = \"2ms\"\n"
            );
        }
        text
    }

    #[test]
    fn spread_pauses_to_flows_that_go_elsewhere() {
        let free = simulate(&victim("", ""));
        let held = simulate(&victim("pfc = \"on\"", ""));
        assert_eq!(dropped(&held), 0);
        let trunk = port(&held, "left", "right");
        assert!(trunk.pauses_received > 0 && trunk.paused_ns > 1_000_000, "{trunk:?}");
        assert!(port(&held, "left", "b").pauses_sent > 0, "who sends elsewhere is paused");
        assert_eq!(port(&held, "right", "free").pauses_received, 0);
        let [without, with] = [&free, &held].map(|outcome| outcome.flows[1].goodput_bps);
        assert!(without > 90e9, "{without}");
        assert!(with < without / 2.0, "head-of-line blocking: {with} of {without}");
    }

    #[test]
    fn far_apart_have_headroom_for_the_fibre() {
        let outcome = simulate(&victim("pfc = \"on\"", "distance = \"5km\""));
        assert_eq!(dropped(&outcome), 0);
        let trunk = port(&outcome, "right", "left");
        // 50 us at 400 Gbit/s make 2.5 MB.
        assert!(trunk.pauses_sent > 0 && trunk.held_bytes_max > 2_500_000, "{trunk:?}");
    }

    #[test]
    fn have_the_same_outcome_on_any_number_of_threads() {
        let scenario = load(&victim("pfc = \"on\"\necn = \"on\"", "distance = \"5km\""));
        let outcome = |threads| {
            let simulation = Simulation::new(scenario.clone(), |_, _| None).unwrap();
            assert!(simulation.threads_max() >= 2);
            format!("{:?}", simulation.run(threads, |_| true))
        };
        assert_eq!(outcome(1), outcome(2));
    }
}

/// The box has no priorities, so its LAN port pauses as a whole.
#[test]
fn an_accelerator_obeys_pauses_and_passes_none_on() {
    let mut text = incast(3, "pfc = \"on\"", "");
    text = text.replacen(
        "[[link]]\nbetween = [\"s1\", \"leaf\"]",
        "[[link]]\nbetween = [\"s1\", \"near.wan\"]",
        1,
    );
    text += "[[accelerator]]\nname = \"near\"\n[[link]]\nbetween = [\"near.lan\", \"leaf\"]\n";
    let outcome = simulate(&text);
    assert_eq!(dropped(&outcome), 0);
    assert!(port(&outcome, "leaf", "near").pauses_sent > 0);
    assert_eq!(counter(&outcome, "s1", "rx_prio_pause"), 0);
}
