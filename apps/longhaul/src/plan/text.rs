//! A plan as text.

use super::probe::Measured;
use crate::output::{self, table};
use longhaul_planner::figures::{bytes, digits, rate, size, time};
use longhaul_planner::{Boxes, Limit, Plan, Prediction, Reach, Step};

/// Formats the plan: summary, path, table, settings, warnings. Prose is wrapped at `width` columns;
/// rows and commands are whole.
pub fn render(plan: &Plan, measured: Option<&Measured>, width: usize) -> String {
    let mut out = Text { text: String::new(), width };
    summary(&mut out, plan);
    if let Some(measured) = measured {
        probe(&mut out, measured);
    }
    head(&mut out, plan);
    rows(&mut out, plan);
    needs(&mut out, plan);
    steps(&mut out, plan);
    warnings(&mut out, plan);
    out.text
}

struct Text {
    text: String,
    width: usize,
}

impl Text {
    /// Appends a line as it is.
    fn line(&mut self, line: &str) {
        self.text += line;
        self.text.push('\n');
    }

    /// Appends prose, whose second and later lines begin with `indent` blanks.
    fn prose(&mut self, indent: usize, prose: &str) {
        let wrapped = output::hanging(prose, indent, self.width);
        self.line(&wrapped);
    }

    /// Appends a value, or its continuation, under a label of the summary or of the path.
    fn labelled(&mut self, label: &str, value: &str) {
        self.prose(LABEL, &format!("{label:<LABEL$}{value}"));
    }
}

/// Columns of a label.
const LABEL: usize = 11;

fn head(out: &mut Text, plan: &Plan) {
    let (path, nic, request) = (&plan.path, &plan.nic, &plan.request);
    let km = path.one_way_ns / 5e3;
    let loss = if path.loss > 0.0 { format!(", loss {:e}", path.loss) } else { String::new() };
    let (rtt, line_rate) = (time(plan.rtt_ns), rate(path.rate_bps));
    out.labelled(
        "Path",
        &format!("{km:.0} km of fibre, round trip {rtt}, {line_rate}, MTU {}{loss}", path.mtu),
    );
    out.labelled("NIC", &format!("{}: {}", nic.name, nic.about));
    out.labelled(
        "Workload",
        &format!(
            "{}, {}, tx-depth {}",
            request.op.to_string().to_uppercase(),
            queue_pairs(request.qps),
            request.tx_depth
        ),
    );
    if let Some(case) = request.use_case {
        out.labelled("Use", case.about());
    }
    let target = match request.target_bps {
        Some(bps) => rate(bps),
        None => "90 % of the rate less headers".to_owned(),
    };
    out.labelled("Target", &target);
    out.line("");
    out.prose(
        0,
        &format!(
            "{} are in flight in a round trip at full rate (bandwidth-delay product).",
            bytes(plan.bandwidth_delay_bytes)
        ),
    );
    let depth = &plan.queue_depth;
    out.prose(
        0,
        &format!(
            "Queue depth = RTT x rate / frame = {:.0} messages of one packet ({} bytes on the \
             wire). The formula leaves out:",
            depth.messages, depth.frame_bytes
        ),
    );
    for missed in &depth.misses {
        out.prose(4, &format!("  - {missed}"));
    }
    out.line("");
}

/// Three lines: the goodput without changes, settings for the target, and the effect of boxes.
fn summary(out: &mut Text, plan: &Plan) {
    let (best, chosen) = (plan.best(), &plan.chosen);
    out.labelled(
        "As it is",
        &format!(
            "{} with messages of {}, limited by: {}",
            rate(best.prediction.goodput_bps),
            size(best.size),
            best.prediction.limit
        ),
    );
    let reached = if chosen.reaches { "for the target" } else { "closest to the target" };
    out.labelled(
        "Settings",
        &format!(
            "{} of depth {}, messages of {}: {reached}",
            queue_pairs(chosen.qps),
            chosen.tx_depth,
            size(chosen.size)
        ),
    );
    let (alone, transport) = (&best.accelerated, &best.transport);
    let of = |with: &Prediction, enough: &str| {
        let (target, limit) = (best.needs.target_bps, with.limit);
        match best.needs.reach {
            _ if with.goodput_bps >= target => enough.to_owned(),
            Reach::Accelerator => {
                format!("reach the target of {} only with more queue pairs or depth", rate(target))
            }
            _ => format!("short of the target of {} (limited by: {limit})", rate(target)),
        }
    };
    let advice = match plan.boxes {
        None if chosen.reaches => "not needed".to_owned(),
        None => "gain little".to_owned(),
        Some(Boxes::Accelerators) => of(alone, "need no transport"),
        Some(Boxes::Transport) => of(transport, "need the transport"),
    };
    out.labelled(
        "Boxes",
        &format!(
            "{advice}: accelerators alone {}, with a transport {}",
            rate(alone.goodput_bps),
            rate(transport.goodput_bps)
        ),
    );
    out.line("");
}

fn probe(out: &mut Text, measured: &Measured) {
    let m = measured;
    let us = |us: f64| time(us * 1e3);
    out.labelled(
        "Probe",
        &format!(
            "{}: round trip {} (least), {} (median), {} (99 %)",
            m.peer,
            us(m.rtt_min_us),
            us(m.rtt_median_us),
            us(m.rtt_p99_us)
        ),
    );
    let lost = m.probes - m.answers;
    let loss = if lost == 0 {
        // The rule of three: 95 % confidence.
        let bound = 300.0 / f64::from(m.probes);
        format!("none of {} probes lost: loss is below {bound:.1} % with 95 % confidence", m.probes)
    } else {
        format!("{lost} of {} probes lost: {:.2} % in each direction", m.probes, 100.0 * m.loss)
    };
    out.labelled("", &loss);
    let mtu = match (m.path_mtu, m.roce_mtu) {
        (Some(ip), Some(roce)) => {
            format!("packets of {ip} bytes pass: path MTU {roce} for RDMA")
        }
        (Some(ip), None) => format!("packets of {ip} bytes pass: too short for RDMA"),
        (None, _) => "packets of 576 bytes do not pass with fragmentation forbidden".to_owned(),
    };
    out.labelled("", &mtu);
    out.line("");
}

/// The table, with a second line of headings.
fn rows(out: &mut Text, plan: &Plan) {
    const COLUMNS: [table::Column; 9] = [
        table::figures("message", 0),
        table::figures("goodput", 0),
        table::words("limited by", 0, 0),
        table::figures("in flight", 0),
        table::figures("QPs", 0),
        table::figures("depth", 0),
        table::figures("latency", 0),
        table::figures("boxes", 0),
        table::figures("with a", 0),
    ];
    let all = plan.rows.iter().flat_map(|row| [&row.prediction, &row.accelerated, &row.transport]);
    let (scale, unit) = match all.map(|p| p.goodput_bps).fold(0.0, f64::max) {
        bps if bps >= 1e8 => (1e9, "Gbit/s"),
        bps if bps >= 1e5 => (1e6, "Mbit/s"),
        _ => (1e3, "kbit/s"),
    };
    let second = ["", unit, "", "per QP", "needed", "each", "", "alone", "transport"];
    let mut lines = vec![second.map(str::to_owned)];
    for row in &plan.rows {
        let p = &row.prediction;
        let (qps, depth) = match (row.needs.reach, row.needs.qps) {
            (Reach::Now, _) => ("enough".to_owned(), String::new()),
            (_, Some(qps)) => (qps.to_string(), row.needs.tx_depth.to_string()),
            (_, None) => ("-".to_owned(), "-".to_owned()),
        };
        lines.push([
            size(row.size),
            figure(p.goodput_bps / scale),
            p.limit.text().to_owned(),
            count(p.in_flight_messages),
            qps,
            depth,
            time(p.latency_ns),
            figure(row.accelerated.goodput_bps / scale),
            figure(row.transport.goodput_bps / scale),
        ]);
    }
    for line in table::lines(COLUMNS, &lines, usize::MAX) {
        out.line(&line);
    }
    out.line("");
}

fn needs(out: &mut Text, plan: &Plan) {
    let (t, m, c) = (&plan.timeouts, &plan.memory, &plan.chosen);
    let reached = match (c.reaches, c.qps) {
        (true, 1) => "reaches the target",
        (true, _) => "reach the target",
        (false, 1) => "comes closest to the target",
        (false, _) => "come closest to the target",
    };
    let pairs = queue_pairs(c.qps);
    out.prose(
        4,
        &format!(
            "What to set: {pairs} of depth {} {reached} from {} on.",
            c.tx_depth,
            size(c.size)
        ),
    );
    out.prose(
        6,
        &format!(
            "  timeout code {} = {} (perftest -u), {} retries: a dead peer is noticed after {}",
            t.code,
            time(t.timeout_ns),
            t.retry_count,
            time(t.gives_up_after_ns)
        ),
    );
    out.prose(
        6,
        &format!(
            "  memory: queues {}, messages posted up to {}; with boxes, a store of {} per box",
            bytes(m.send_queue_bytes + m.completion_queue_bytes),
            bytes(m.buffer_bytes),
            bytes(m.box_bytes())
        ),
    );
    out.line("");
}

fn steps(out: &mut Text, plan: &Plan) {
    for (index, Step { place, title, why, commands }) in plan.steps.iter().enumerate() {
        out.prose(3, &format!("{}. {title} ({}): {why}", index + 1, place.text()));
        for command in commands {
            out.line(&format!("     {command}"));
        }
        out.line("");
    }
    if plan.request.use_case.is_none() {
        out.prose(
            0,
            "Settings of programs: --use storage, database, migration, training, cps or telescope.",
        );
        out.line("");
    }
}

fn warnings(out: &mut Text, plan: &Plan) {
    let best = plan.best().prediction.goodput_bps;
    let limits = plan.rows.iter().any(|row| row.prediction.limit != Limit::LineRate);
    if plan.warnings.is_empty() {
        let all = if limits { "" } else { ", at every size" };
        out.prose(0, &format!("No warnings: {} to expect{all}.", rate(best)));
        return;
    }
    out.line("Warnings");
    for warning in &plan.warnings {
        out.prose(4, &format!("  ! {warning}"));
    }
}

fn queue_pairs(qps: u32) -> String {
    format!("{qps} queue pair{}", if qps == 1 { "" } else { "s" })
}

/// A figure of a column: three significant digits, or two below a tenth.
fn figure(value: f64) -> String {
    match value {
        v if v == v.trunc() => format!("{v}"),
        v => digits(v, if v < 0.1 { 2 } else { 3 }),
    }
}

fn count(value: f64) -> String {
    match value {
        v if v >= 10.0 => format!("{v:.0}"),
        v if v >= 0.95 => format!("{v:.1}"),
        v => digits(v, 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_planner::{Accelerator, NicProfile, Op, Path, Request};

    /// The text for WRITEs of `size`.
    fn text_of(path: Path, size: u64, target_bps: Option<f64>) -> String {
        let request = Request {
            op: Op::Write,
            sizes: vec![size],
            qps: 1,
            tx_depth: 128,
            cq_mod: None,
            iterations: None,
            target_bps,
            use_case: None,
            accelerator: Accelerator::default(),
        };
        let nic = NicProfile::named("connectx6").unwrap();
        render(&Plan::new(&path, &nic, &request).unwrap(), None, 80)
    }

    #[test]
    fn a_plan_opens_with_three_lines_and_has_a_column_for_each_kind_of_boxes() {
        let text = text_of(Path { loss: 1e-3, ..Path::of_km(1000.0, 100e9) }, 65_536, None);
        let opening: Vec<&str> = text.lines().take(5).collect();
        assert_eq!(
            opening,
            [
                "As it is   2.2 Gbit/s with messages of 64 KiB, limited by: queue depth",
                "Settings   270 queue pairs of depth 128, messages of 64 KiB: for the target",
                "Boxes      need the transport: accelerators alone 3.16 Gbit/s, with a transport",
                "           97.3 Gbit/s",
                "",
            ]
        );
        let row = text.lines().find(|line| line.starts_with(" 64 KiB")).unwrap();
        let last: Vec<&str> = row.split_whitespace().rev().take(2).collect();
        assert_eq!(last, ["97.3", "3.16"]);
    }

    #[test]
    fn boxes_are_enough_only_where_they_reach_the_target() {
        let boxes = |km, size, target| {
            let text = text_of(Path::of_km(km, 100e9), size, target);
            text.lines().find(|line| line.starts_with("Boxes")).map(str::to_owned).unwrap()
        };
        assert!(boxes(1000.0, 4096, Some(50e9)).starts_with("Boxes      need no transport: "));
        let deeper = boxes(10_000.0, 1024, Some(50e9));
        assert!(deeper.contains("reach the target of 50 Gbit/s only with more"), "{deeper}");
        let short = boxes(1000.0, 3, None);
        assert!(short.starts_with("Boxes      short of the target of "), "{short}");
    }

    #[test]
    fn prose_is_wrapped_and_the_table_fits_100_columns() {
        let text = text_of(Path { loss: 1e-4, ..Path::of_km(1000.0, 10e9) }, 65_536, None);
        for line in text.lines() {
            let is_command = line.starts_with("     ") && !line.starts_with("           ");
            let is_row = ["goodput  ", "Gbit/s  ", "KiB  "].iter().any(|part| line.contains(part));
            let most = if is_row { 100 } else { 80 };
            assert!(is_command || line.chars().count() <= most, "{line}");
        }
    }

    #[test]
    fn columns_have_no_exponents_and_no_zeros_for_little() {
        let rates = [100.0, 97.95, 4.394, 0.5243, 0.0842, 0.000_24, 0.0];
        assert_eq!(rates.map(figure), ["100", "98.0", "4.39", "0.524", "0.084", "0.00024", "0"]);
        assert_eq!([16.0, 4.2, 0.03].map(count), ["16", "4.2", "0.030"]);
    }
}
