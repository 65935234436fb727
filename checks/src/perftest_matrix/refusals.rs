//! Combinations that perftest refuses, with its messages, and the reasons why the device is not at
//! fault.

use super::{By, Case, Measure, Transport, Verb};

/// An expected refusal.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Part of perftest's message.
    pub message: &'static str,
    /// Reason why the device is not at fault.
    pub why: &'static str,
}

/// Refusals that apply to `case`; none if it must run. perftest may name any of several.
pub fn refusals(case: &Case) -> Vec<&'static Refusal> {
    RULES.iter().filter(|rule| (rule.applies)(case)).map(|rule| &rule.refusal).collect()
}

struct Rule {
    applies: fn(&Case) -> bool,
    refusal: Refusal,
}

const fn rule(applies: fn(&Case) -> bool, message: &'static str, why: &'static str) -> Rule {
    Rule { applies, refusal: Refusal { message, why } }
}

fn has(case: &Case, options: &str) -> bool {
    let of_case: Vec<&str> = case.variation.options.split_whitespace().collect();
    let wanted: Vec<&str> = options.split_whitespace().collect();
    of_case.windows(wanted.len()).any(|window| window == wanted)
}

fn is_latency(case: &Case) -> bool {
    case.measure == Measure::Latency
}

fn fetches(case: &Case) -> bool {
    matches!(case.verb, Verb::Read | Verb::Atomic)
}

const RULES: &[Rule] = &[
    rule(
        |case| case.transport == Transport::Uc && fetches(case),
        "UC connection not possible in READ/ATOMIC verbs",
        "an unreliable connection has no responses, so the standard gives it neither READs nor \
         atomics",
    ),
    rule(
        |case| case.transport == Transport::Ud && case.verb != Verb::Send,
        "UD connection only possible in SEND verb",
        "a datagram has no address in the peer's memory; the standard gives UD SENDs only",
    ),
    rule(
        |case| case.transport == Transport::Uc && case.by == By::RdmaCm,
        "UC is not supported in librdmacm",
        "RDMA-CM's port spaces are for RC and UD; perftest does not try",
    ),
    rule(
        |case| is_latency(case) && has(case, "-b"),
        "Bidirectional is only available in BW test",
        "a latency test goes both ways already",
    ),
    rule(
        |case| is_latency(case) && has(case, "-q 16"),
        "Multiple QPs only available on bw tests",
        "a latency test has one message in flight",
    ),
    rule(
        |case| is_latency(case) && has(case, "-l 16"),
        "Post list is supported in BW tests only",
        "a latency test has one message in flight",
    ),
    rule(
        |case| case.verb == Verb::Write && has(case, "-e"),
        "Events feature not available on WRITE verb",
        "the target of a WRITE has no completion that it could sleep on",
    ),
    rule(
        |case| fetches(case) && has(case, "-I 64"),
        "Inline feature not available on READ/Atomic verbs",
        "their requests carry no data",
    ),
    rule(
        |case| case.verb != Verb::Send && has(case, "--use-srq"),
        "Using SRQ only avavilible in SEND tests.",
        "only SENDs (and WRITEs with immediate, which this version has not) take receives",
    ),
    rule(
        |case| {
            let client_has_it = is_latency(case) || has(case, "-b");
            case.transport == Transport::Ud
                && case.by == By::RdmaCm
                && has(case, "--use-srq")
                && client_has_it
        },
        "Failed to post receive for connection 0",
        "perftest posts a receive to a queue pair that takes its receives from a shared queue",
    ),
    rule(
        |case| case.verb == Verb::Atomic && has(case, "-a"),
        "Message size cannot be changed for Atomic tests",
        "an atomic is on 8 bytes",
    ),
    rule(
        |case| case.by == By::RdmaCm && has(case, "-g"),
        "Perftest still doesn't support Multicast with rdma_cm",
        "perftest's own gap; mckey shows multicast by RDMA-CM",
    ),
    rule(
        |case| !is_latency(case) && has(case, "-g") && !has(case, "-M"),
        "Found Incompatibility issue with GID types",
        "the group that perftest takes by default is InfiniBand's, not one of IPv4; it runs with \
         `-M`",
    ),
    rule(
        |case| case.by == By::RdmaCm && has(case, "--rate_limit_type=HW"),
        "HW rate limit isn't supported yet with rdma_cm scenarios",
        "perftest's own gap",
    ),
    rule(
        |case| has(case, "--rate_limit_type=HW"),
        "The QP failed to accept HW rate limit",
        "perftest accepts a limit by static rate on InfiniBand alone, whatever a RoCE device \
         answers",
    ),
    rule(
        |case| has(case, "--rate_limit_type=PP"),
        "Packet Pacing is only supported for Raw Ethernet",
        "perftest's packet pacing is for raw Ethernet queue pairs, which a RoCE device need not \
         have",
    ),
    rule(
        |case| has(case, "--write_with_imm"),
        "unrecognized option '--write_with_imm'",
        "newer than Debian's version",
    ),
    rule(
        |case| has(case, "--odp"),
        "is not supported for RC transport",
        "the device says that it has no on-demand paging",
    ),
    rule(
        |case| has(case, "-c XRC"),
        "Error opening XRC domain",
        "the device says that it has no extended reliable connections",
    ),
    rule(
        |case| has(case, "-c DC"),
        "Unable to create QP",
        "a transport of one vendor's devices; the device refuses its queue pairs",
    ),
    rule(
        |case| has(case, "-c SRD"),
        "SRD connection only possible in SEND/READ verbs",
        "a transport of one vendor's devices, which has no WRITE in perftest",
    ),
    rule(|case| has(case, "-O"), "Unable to query port 2 attributes", "the device has one port"),
];
