//! A plan as text.

use super::probe::Measured;
use longhaul_boxes::quantity::Size;
use longhaul_planner::{Limit, Plan, Reach, Row, Step};
use std::fmt::Write as _;

/// Formats the plan: path, table, settings, warnings.
pub fn render(plan: &Plan, measured: Option<&Measured>) -> String {
    let mut out = String::new();
    head(&mut out, plan, measured);
    table(&mut out, plan);
    needs(&mut out, plan);
    steps(&mut out, plan);
    warnings(&mut out, plan);
    out
}

/// Writing to a String cannot fail.
macro_rules! line {
    ($out:expr $(, $($format:tt)+)?) => {{ let _ = writeln!($out $(, $($format)+)?); }};
}

fn head(out: &mut String, plan: &Plan, measured: Option<&Measured>) {
    let (path, nic, request) = (&plan.path, &plan.nic, &plan.request);
    if let Some(measured) = measured {
        probe(out, measured);
    }
    let rtt = time(plan.rtt_ns);
    let km = path.one_way_ns / 5e3;
    let loss = if path.loss > 0.0 { format!(", loss {:e}", path.loss) } else { String::new() };
    line!(
        out,
        "Path      {km:.0} km of fibre, round trip {rtt}, {} Gbit/s, MTU {}{loss}",
        gbps(path.rate_bps),
        path.mtu
    );
    line!(out, "NIC       {}: {}", nic.name, nic.about);
    let s = if request.qps == 1 { "" } else { "s" };
    line!(
        out,
        "Workload  {}, {} queue pair{s}, tx-depth {}",
        request.op.to_string().to_uppercase(),
        request.qps,
        request.tx_depth
    );
    if let Some(case) = request.use_case {
        line!(out, "Use       {}", case.about());
    }
    line!(out);
    line!(
        out,
        "{} are under way in a round trip at full rate (bandwidth-delay product).",
        bytes(plan.bandwidth_delay_bytes)
    );
    let depth = &plan.queue_depth;
    line!(
        out,
        "Queue depth = RTT x rate / frame = {:.0} messages of one packet ({} bytes on the wire). \
         What the",
        depth.messages,
        depth.frame_bytes
    );
    line!(out, "formula leaves out:");
    for missed in &depth.misses {
        line!(out, "  - {missed}");
    }
    line!(out);
}

fn probe(out: &mut String, measured: &Measured) {
    let m = measured;
    line!(
        out,
        "Probe     {}: round trip {} (least), {} (median), {} (99 %)",
        m.peer,
        us(m.rtt_min_us),
        us(m.rtt_median_us),
        us(m.rtt_p99_us)
    );
    let lost = m.probes - m.answers;
    if lost == 0 {
        // The rule of three: 95 % confidence.
        line!(
            out,
            "          none of {} probes lost: loss is below {:.1} % with 95 % confidence",
            m.probes,
            300.0 / f64::from(m.probes)
        );
    } else {
        line!(
            out,
            "          {lost} of {} probes lost: {:.2} % in each direction",
            m.probes,
            100.0 * m.loss
        );
    }
    match (m.path_mtu, m.roce_mtu) {
        (Some(ip), Some(roce)) => {
            line!(out, "          packets of {ip} bytes pass: path MTU {roce} for RDMA")
        }
        (Some(ip), None) => line!(out, "          packets of {ip} bytes pass: too short for RDMA"),
        (None, _) => {
            line!(out, "          packets of 576 bytes do not pass with fragmentation forbidden")
        }
    }
    line!(out);
}

fn table(out: &mut String, plan: &Plan) {
    let shared = plan.request.target_bps;
    let target = match shared {
        Some(bps) => format!("for {}G", gbps(bps)),
        None => "for 90 %".to_owned(),
    };
    let accelerates = !plan.request.op.is_answered();
    let with = if accelerates { "accelerated" } else { "" };
    let unit = if accelerates { "Gbit/s" } else { "" };
    let mut columns = |columns: [&str; 8]| {
        let [message, goodput, limit, in_flight, qps, depth, latency, with] = columns;
        let written = format!(
            "{message:>8}  {goodput:>10}  {limit:<22}  {in_flight:>9}  {qps:>8}  {depth:>8}  \
             {latency:>9}  {with:>11}"
        );
        line!(out, "{}", written.trim_end());
    };
    columns(["message", "goodput", "limited by", "in flight", "QPs", "tx-depth", "latency", with]);
    columns(["", "Gbit/s", "", "per QP", &target, "each", "", unit]);
    for row in &plan.rows {
        let p = &row.prediction;
        let (qps, depth) = match (row.needs.reach, row.needs.qps) {
            (Reach::Now, _) => ("enough".to_owned(), String::new()),
            (_, Some(qps)) => (qps.to_string(), row.needs.tx_depth.to_string()),
            (_, None) => ("-".to_owned(), "-".to_owned()),
        };
        let with = if accelerates { gbps(row.accelerated.goodput_bps) } else { String::new() };
        columns([
            &size(row.size),
            &gbps(p.goodput_bps),
            p.limit.text(),
            &count(p.in_flight_messages),
            &qps,
            &depth,
            &time(p.latency_ns),
            &with,
        ]);
    }
    line!(out);
}

fn needs(out: &mut String, plan: &Plan) {
    let (t, m, c) = (&plan.timeouts, &plan.memory, &plan.chosen);
    let reached = if c.reaches { "reach the target" } else { "come closest to the target" };
    let s = if c.qps == 1 { "" } else { "s" };
    line!(
        out,
        "What to set: {} queue pair{s} of depth {} {reached} from {} on.",
        c.qps,
        c.tx_depth,
        size(c.size)
    );
    line!(
        out,
        "  timeout code {} = {} (perftest -u), {} retries: a dead peer is noticed after {}",
        t.code,
        time(t.timeout_ns),
        t.retry_count,
        time(t.gives_up_after_ns)
    );
    line!(
        out,
        "  memory: queues {}, messages posted up to {}; an accelerator's store {}",
        bytes(m.send_queue_bytes + m.completion_queue_bytes),
        bytes(m.buffer_bytes),
        bytes(m.accelerator_near_bytes + m.accelerator_far_bytes)
    );
    line!(out);
}

fn steps(out: &mut String, plan: &Plan) {
    for (index, Step { place, title, why, commands }) in plan.steps.iter().enumerate() {
        line!(out, "{}. {title} ({}): {why}", index + 1, place.text());
        for command in commands {
            line!(out, "     {command}");
        }
        line!(out);
    }
    if plan.request.use_case.is_none() {
        line!(
            out,
            "Settings of programs: --use storage, database, migration, training, cps or telescope."
        );
        line!(out);
    }
}

fn warnings(out: &mut String, plan: &Plan) {
    let best = plan.rows.iter().map(|row: &Row| row.prediction.goodput_bps).fold(0.0, f64::max);
    let limits = plan.rows.iter().any(|row| row.prediction.limit != Limit::LineRate);
    if plan.warnings.is_empty() {
        let all = if limits { "" } else { ", at every size" };
        line!(out, "No warnings: {} Gbit/s to expect{all}.", gbps(best));
        return;
    }
    line!(out, "Warnings");
    for warning in &plan.warnings {
        line!(out, "  ! {warning}");
    }
}

/// Gigabits per second with three digits.
fn gbps(bps: f64) -> String {
    digits(bps / 1e9)
}

/// Three significant digits, or all integer digits.
fn digits(value: f64) -> String {
    match value {
        v if v == v.trunc() && v >= 1.0 => format!("{v}"),
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v if v >= 0.9995 => format!("{v:.2}"),
        v if v >= 0.0005 => format!("{v:.3}"),
        0.0 => "0".to_owned(),
        v => format!("{v:.1e}"),
    }
}

fn count(value: f64) -> String {
    if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn size(bytes: u64) -> String {
    Size::from_bytes(bytes).to_string()
}

fn bytes(bytes: f64) -> String {
    let (scale, unit) = match bytes {
        b if b >= 1e9 => (1e9, "GB"),
        b if b >= 1e6 => (1e6, "MB"),
        b if b >= 1e3 => (1e3, "kB"),
        _ => (1.0, "B"),
    };
    format!("{} {unit}", digits(bytes / scale))
}

fn us(us: f64) -> String {
    time(us * 1e3)
}

/// Four significant digits, for delays.
fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        n if n >= 1e9 => (n / 1e9, "s"),
        n if n >= 1e6 => (n / 1e6, "ms"),
        n if n >= 1e3 => (n / 1e3, "µs"),
        n => (n, "ns"),
    };
    let decimals = match value {
        v if v >= 99.995 => 1,
        v if v >= 9.9995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_as_many_digits_as_are_meant() {
        let rates = [100e9, 97.95e9, 4.394e9, 0.5243e9, 0.0005e9, 400.0, 0.0];
        assert_eq!(rates.map(gbps), ["100", "98.0", "4.39", "0.524", "0.001", "4.0e-7", "0"]);
        assert_eq!(
            [3.8e6, 67.1e6, 1905.3e3, 250.0].map(time),
            ["3.800 ms", "67.10 ms", "1.905 ms", "250.0 ns"]
        );
        assert_eq!([47.5e6, 125e6, 2e9, 512.0].map(bytes), ["47.5 MB", "125 MB", "2 GB", "512 B"]);
    }
}
