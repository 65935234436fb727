//! UC, shared receive queues, events, and networks of several senders.

use longhaul_sim::file::ScenarioFile;
use longhaul_sim::*;

fn simulate(text: &str) -> Outcome {
    let file = ScenarioFile::parse("x.toml", text);
    let loaded = file.and_then(|file| file.load(&mut |name| Err(format!("no file {name}"))));
    let scenario = loaded.unwrap_or_else(|error| panic!("{error}\n{text}")).scenario;
    let outcome = Simulation::new(scenario, |_, _| None).unwrap().run(1, |_| true);
    assert_eq!(outcome.violations, Vec::<String>::new());
    assert_eq!(outcome.unfinished, None);
    assert_eq!(outcome.flows.iter().filter_map(|flow| flow.failure.as_ref()).next(), None);
    outcome
}

fn counter(outcome: &Outcome, host: &str, name: &str) -> u64 {
    let host = outcome.hosts.iter().find(|found| found.name == host).unwrap();
    host.counters.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count)
}

fn load(outcome: &Outcome, host: &str) -> Load {
    outcome.hosts.iter().find(|found| found.name == host).unwrap().load.unwrap()
}

fn gbps(outcome: &Outcome) -> f64 {
    outcome.flows.iter().map(|flow| flow.goodput_bps).sum::<f64>() / 1e9
}

/// A path of a kilometre, and one flow of WRITEs with immediate data.
fn path(path: &str, flow: &str) -> String {
    format!(
        "[path]\ndistance = \"1km\"\nrate = \"100G\"\n{path}\n[[flow]]\nop = \"write_imm\"\n\
         transport = \"uc\"\n{flow}\n"
    )
}

/// Senders on one switch, and a sink; further keys of the switch, the sink and the flows.
fn many(senders: usize, switch: &str, sender: &str, sink: &str, flow: &str) -> String {
    let mut text = format!("warmup = \"2ms\"\n[[switch]]\nname = \"leaf\"\n{switch}\n");
    text += &format!("[[host]]\nname = \"sink\"\nnic = \"ideal\"\n{sink}\n");
    text += "[[link]]\nbetween = [\"sink\", \"leaf\"]\nrate = \"100G\"\n";
    for number in 1..=senders {
        text += &format!("[[host]]\nname = \"s{number}\"\nnic = \"ideal\"\n{sender}\n");
        text += &format!("[[link]]\nbetween = [\"s{number}\", \"leaf\"]\nrate = \"100G\"\n");
    }
    for number in 1..=senders {
        text += &format!(
            "[[flow]]\nname = \"f{number}\"\nfrom = \"s{number}\"\nto = \"sink\"\n\
             op = \"write_imm\"\ntransport = \"uc\"\n{flow}\n"
        );
    }
    text
}

fn dropped(outcome: &Outcome) -> u64 {
    outcome.switches.iter().flat_map(|it| &it.ports).map(PortOutcome::dropped_frames).sum()
}

mod uc {
    use super::*;

    const FLOW: &str = "size = \"16K\"\nqps = 4\niterations = 2000\nrx_depth = 2000";

    #[test]
    fn without_loss_delivers_every_message_once() {
        let outcome = simulate(&path("nic = \"ideal\"", FLOW));
        let arrivals = outcome.flows[0].arrivals.unwrap();
        assert_eq!((arrivals.messages, arrivals.lost, arrivals.flagged), (8000, Some(0), 0));
        assert_eq!((arrivals.incomplete, arrivals.duplicates), (0, 0));
        assert!(gbps(&outcome) > 97.5, "{}", gbps(&outcome));
    }

    #[test]
    fn flags_what_is_lost_and_retransmits_nothing() {
        let lossy = "nic = \"ideal\"\nloss = 1e-2\nloss_direction = \"forward\"";
        let outcome = simulate(&path(lossy, FLOW));
        let arrivals = outcome.flows[0].arrivals.unwrap();
        let lost = arrivals.lost.unwrap();
        assert_eq!(arrivals.messages + lost, 8000);
        // Four packets each, of which one per cent is lost.
        assert!((200..450).contains(&lost), "{lost}");
        assert!(arrivals.incomplete > 0 && arrivals.incomplete <= lost, "{arrivals:?}");
        // Nothing follows the last messages of each QP that would show their loss.
        assert!(arrivals.flagged <= lost && lost - arrivals.flagged < 12, "{arrivals:?}");
        assert_eq!(counter(&outcome, "a", "tx_frames"), 4 * 8000);
        assert_eq!(counter(&outcome, "b", "tx_frames"), 0);
        assert!(outcome.wires.iter().map(|wire| wire.lost_frames).sum::<u64>() >= lost);
    }

    #[test]
    fn drops_messages_that_find_no_receive() {
        // The program takes a microsecond for each message, and a message comes each 334 ns.
        let slow = "[path.nic]\nprofile = \"ideal\"\npoll_ns = 1000\nrate_bps = \"100G\"";
        let outcome = simulate(&path(slow, "size = \"4K\"\niterations = 3000\nrx_depth = 64"));
        let arrivals = outcome.flows[0].arrivals.unwrap();
        assert!(arrivals.lost.unwrap() > 1000, "{arrivals:?}");
        assert_eq!(counter(&outcome, "b", "out_of_buffer"), arrivals.lost.unwrap());
    }

    #[test]
    fn survives_reordering_and_duplication() {
        let unruly = "nic = \"ideal\"\nreorder = 1e-2\nreorder_delay = \"10us\"\nduplicate = 1e-2";
        let outcome = simulate(&path(unruly, "size = \"4K\"\niterations = 4000\nrx_depth = 4000"));
        let arrivals = outcome.flows[0].arrivals.unwrap();
        assert_eq!((arrivals.messages, arrivals.lost, arrivals.flagged), (4000, Some(0), 0));
        assert!(arrivals.duplicates > 10, "{arrivals:?}");
    }
}

mod a_shared_receive_queue {
    use super::*;

    #[test]
    fn serves_the_qps_of_all_senders() {
        for events in ["off", "solicited"] {
            let flow = format!(
                "events = \"{events}\"\nsize = \"8K\"\nqps = 8\niterations = 100\npost_list = 10"
            );
            let slow = "egress_rate = \"20G\"";
            let outcome = simulate(&many(3, "", slow, "srq = 1000", &flow));
            for flow in &outcome.flows {
                let arrivals = flow.arrivals.unwrap();
                assert_eq!((arrivals.messages, arrivals.flagged), (800, 0), "{events}");
            }
        }
    }

    #[test]
    fn drops_messages_of_uc_when_it_is_empty() {
        let (events, lost) = dry("all");
        assert!(events > 0 && lost > 1000, "{events} {lost}");
    }

    #[test]
    fn that_runs_dry_before_a_solicited_message_stops_for_good() {
        // The message that would wake the program finds no receive either.
        let (_, lost) = dry("solicited");
        assert!(lost > 7000, "{lost}");
    }

    /// Lists of 100 messages into a queue that is shorter than what comes during a wake-up. Returns
    /// events and lost messages.
    fn dry(events: &str) -> (u64, u64) {
        let flow = format!(
            "events = \"{events}\"\nsize = \"4K\"\nqps = 4\niterations = 1000\npost_list = 100"
        );
        let sink = "srq = 32\n[host.nic]\nprofile = \"ideal\"\nwakeup_ns = 50_000";
        let text = many(2, "", "egress_rate = \"20G\"", sink, &flow);
        let outcome = simulate(&text.replace("nic = \"ideal\"\nsrq", "srq"));
        let lost: u64 = outcome.flows.iter().map(|it| it.arrivals.unwrap().lost.unwrap()).sum();
        let untaken = lost - counter(&outcome, "sink", "out_of_buffer");
        assert!(untaken <= 32, "{untaken}");
        (load(&outcome, "sink").events, lost)
    }

    #[test]
    fn of_a_slow_nic_pauses_the_senders_and_loses_nothing() {
        let sink = "srq = 4000\npfc = \"on\"\n[host.nic]\nprofile = \"ideal\"\n\
                    srq_message_ns = 1000";
        let text = many(2, "pfc = \"on\"", "", sink, "size = \"4K\"\nduration = \"6ms\"");
        let text = text.replace("nic = \"ideal\"\nsrq", "srq");
        let outcome = simulate(&text);
        assert_eq!(dropped(&outcome), 0);
        assert!(counter(&outcome, "sink", "tx_prio_pause") > 0);
        // A message of 4 KiB per microsecond.
        assert!((gbps(&outcome) - 32.768).abs() < 0.5, "{}", gbps(&outcome));
    }
}

mod events {
    use super::*;

    fn of(events: &str, list: u32) -> Outcome {
        let flow = format!(
            "events = \"{events}\"\nsize = \"16K\"\npost_list = {list}\ntx_depth = 1000\n\
             rx_depth = 1000\nduration = \"20ms\""
        );
        simulate(&format!("warmup = \"4ms\"\n{}", path("nic = \"das6\"", &flow)))
    }

    #[test]
    fn are_as_many_as_lists_where_only_solicited_ones_count() {
        let outcome = of("solicited", 25);
        let (messages, events) = (outcome.flows[0].messages, load(&outcome, "b").events);
        assert!(events.abs_diff(messages / 25) <= 1, "{events} of {messages}");
        let all = load(&of("all", 25), "b");
        assert!(all.events > 2 * events, "{all:?}");
        assert!(all.cpu_percent > 2.0 * load(&outcome, "b").cpu_percent, "{all:?}");
    }

    #[test]
    fn cost_less_to_post_with_lists() {
        let [single, list] = [1, 100].map(|list| load(&of("all", list), "a").cpu_percent);
        assert!(list < 0.8 * single && list > 0.0, "{list} and {single}");
    }

    #[test]
    fn serve_reliable_connections_too() {
        let text = path(
            "nic = \"das6\"",
            "events = \"solicited\"\nsize = \"16K\"\nqps = 3\niterations = 500\npost_list = 10",
        );
        let outcome = simulate(&text.replace("\"uc\"", "\"rc\""));
        assert_eq!(outcome.flows[0].messages, 1500);
        assert!(outcome.flows[0].arrivals.is_none());
        assert_eq!((load(&outcome, "a").threads, load(&outcome, "b").threads), (3, 3));
    }
}

mod many_senders {
    use super::*;

    const FLOW: &str = "size = \"16K\"\nqps = 10\nrx_depth = 1000\nduration = \"10ms\"";

    #[test]
    fn with_shares_of_the_link_reach_their_shares_without_a_pause() {
        let outcome = simulate(&many(4, "pfc = \"on\"", "egress_rate = \"23G\"", "", FLOW));
        assert_eq!(dropped(&outcome), 0);
        let ports = outcome.switches.iter().flat_map(|it| &it.ports);
        assert_eq!(ports.map(|port| port.pauses_sent).sum::<u64>(), 0);
        for flow in &outcome.flows {
            // 16 KiB in four packets of 4096 + 58 bytes, 20 of RETH and immediate data, and 24 each
            // of preamble, FCS and gap.
            let share = 23.0 * 16_384.0 / f64::from(4 * (4096 + 58 + 24) + 20);
            let goodput = flow.goodput_bps / 1e9;
            assert!((goodput / share - 1.0).abs() < 0.01, "{goodput} of {share}");
            assert_eq!(flow.arrivals.unwrap().flagged, 0);
        }
    }

    #[test]
    fn share_a_buffer_by_alpha_without_loss() {
        let shared = |alpha: &str| {
            let switch = format!("pfc = \"on\"\npfc_buffer = \"4M\"\npfc_alpha = {alpha}");
            simulate(&many(4, &switch, "", "", FLOW))
        };
        let held = |outcome: &Outcome| {
            let ports = outcome.switches.iter().flat_map(|it| &it.ports);
            ports.map(|port| port.held_bytes_max).max().unwrap()
        };
        let [one, eighth] = ["1", "0.125"].map(shared);
        for outcome in [&one, &eighth] {
            assert_eq!(dropped(outcome), 0);
            assert!(outcome.flows.iter().all(|flow| flow.arrivals.unwrap().flagged == 0));
            assert!(gbps(outcome) > 97.0, "{}", gbps(outcome));
            let ports = outcome.switches.iter().flat_map(|it| &it.ports);
            assert!(ports.map(|port| port.pauses_sent).sum::<u64>() > 0);
        }
        // Of four inputs each may hold a fifth of the buffer, or a twelfth.
        assert!(held(&eighth) < held(&one), "{} and {}", held(&eighth), held(&one));
        assert!(held(&one) < 4 << 20);
    }

    #[test]
    fn of_two_classes_share_an_output_by_ets() {
        let switch = "pfc = \"on\"\nqueue = \"512K\"\nets_share = 70";
        let text = many(2, switch, "", "", FLOW).replacen("uc\"\n", "uc\"\ndscp = 0\n", 1);
        let outcome = simulate(&text);
        let [others, lossless] = [0, 1].map(|flow| outcome.flows[flow].goodput_bps / 1e9);
        let port = &outcome.switches[0].ports[0];
        assert!(port.drops.iter().all(|(reason, _)| reason == "queue_full"), "{port:?}");
        assert_eq!(outcome.flows[1].arrivals.unwrap().flagged, 0);
        assert!((lossless / 98.0 - 0.7).abs() < 0.02, "{lossless} beside {others}");
    }
}

#[test]
fn threads_do_not_change_the_outcome() {
    let text = path(
        "nic = \"das6\"\nloss = 1e-3",
        "events = \"solicited\"\nsize = \"16K\"\nqps = 4\niterations = 500\npost_list = 10",
    )
    .replace("1km", "100km");
    let file = ScenarioFile::parse("x.toml", &text).unwrap();
    let outcomes = [1, 2].map(|threads| {
        let scenario = file.load(&mut |_| Err(String::new())).unwrap().scenario;
        format!("{:?}", Simulation::new(scenario, |_, _| None).unwrap().run(threads, |_| true))
    });
    assert_eq!(outcomes[0], outcomes[1]);
}
