//! Time-sequence plot of one flow: PSNs over time.

use crate::problem::Problem;
use longhaul_bench::{Line, Marker, Plot, PlotAxis, Quantity, Scale, Style};
use longhaul_doctor::report::Flow;
use longhaul_doctor::{Mark, Trace};
use std::path::Path;

/// Name, colour and marker of each kind of packet. Kinds with few packets have shapes.
fn look(mark: Mark) -> (&'static str, usize, Marker) {
    match mark {
        Mark::Request => ("request", 0, Marker::Dot),
        Mark::Ack => ("acknowledgement", 4, Marker::Dot),
        Mark::ReadResponse => ("READ response", 5, Marker::Dot),
        Mark::ReadRequest => ("READ request", 3, Marker::Filled),
        Mark::Again => ("sent again", 1, Marker::Dot),
        Mark::Nak => ("NAK, RNR NAK", 6, Marker::Filled),
        Mark::Cnp => ("congestion notification", 2, Marker::Filled),
    }
}

/// Draws `trace`, which belongs to `flow` of `capture`, into `file`.
pub fn write(trace: &Trace, flow: &Flow, capture: &Path, file: &Path) -> Result<(), Problem> {
    let svg =
        draw(trace, flow, capture).svg().map_err(|error| Problem::plain(error.to_string()))?;
    std::fs::write(file, svg).map_err(|error| Problem::io("write", file, &error))
}

fn title(flow: &Flow) -> String {
    let qpn = |qpn: Option<u32>| qpn.map_or("?".to_owned(), |qpn| format!("{qpn:#x}"));
    format!(
        "Flow {}: {} QP {} → {} QP {}",
        flow.number,
        flow.requester.ip,
        qpn(flow.requester.qpn),
        flow.responder.ip,
        qpn(flow.responder.qpn),
    )
}

/// The capture, the goodput and the first finding.
fn note(flow: &Flow, capture: &Path) -> String {
    let name = capture.file_name().unwrap_or(capture.as_os_str()).to_string_lossy();
    let goodput = Quantity::of("goodput_bps").humanised(flow.goodput_bps);
    let finding = flow.findings.first().map(|finding| format!(" · {}", finding.what));
    format!("{name} · {goodput} goodput{}", finding.unwrap_or_default())
}

fn draw(trace: &Trace, flow: &Flow, capture: &Path) -> Plot {
    let line = |mark: Mark| {
        let (name, series, marker) = look(mark);
        let points = trace.points().iter().filter(|point| point.2 == mark);
        Line {
            label: name.to_owned(),
            series,
            style: Style::Points,
            marker,
            points: points.map(|&(x, y, _)| (x, y)).collect(),
        }
    };
    let whole = |end: u64| [0.0, end.max(1) as f64];
    Plot {
        title: title(flow),
        x: PlotAxis::of(
            "time_ns",
            "time since the first packet",
            whole(flow.duration_ns),
            Some(Scale::Linear),
        ),
        y: PlotAxis::of(
            "packets",
            &format!("PSN − {} (packets)", flow.first_psn.unwrap_or(0)),
            whole(flow.psns),
            Some(Scale::Linear),
        ),
        lines: Mark::ALL.into_iter().map(line).filter(|line| !line.points.is_empty()).collect(),
        key: Vec::new(),
        note: note(flow, capture),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_doctor::{Doctor, Options, examine};

    /// The plot of the only flow of a recorded capture.
    fn drawn(name: &str) -> Plot {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../checks/captures").join(name);
        let capture = std::fs::read(&path).unwrap();
        let mut doctor = Doctor::new(Options::default());
        examine(&capture[..], &mut doctor, |_| {}).unwrap();
        let report = doctor.finish();
        let mut doctor = Doctor::tracing(Options::default(), Trace::of(&report.flows[0]));
        examine(&capture[..], &mut doctor, |_| {}).unwrap();
        draw(&doctor.finish_trace().unwrap(), &report.flows[0], &path)
    }

    /// Numbers of attribute `name` of the elements that begin with `element`.
    fn attribute(svg: &str, element: &str, name: &str) -> Vec<f64> {
        let elements = svg.split(element).skip(1).map(|rest| rest.split('>').next().unwrap());
        let value = |text: &str| {
            let rest = text.split_once(&format!(" {name}=\""))?.1;
            rest.split('"').next()?.parse().ok()
        };
        elements.filter_map(value).collect()
    }

    #[test]
    fn each_kind_of_packet_has_a_name_beside_the_data() {
        let plot = drawn("rc_write_loss5pct_16k.pcap");
        let names: Vec<_> = plot.lines.iter().map(|line| line.label.as_str()).collect();
        assert_eq!(names, ["acknowledgement", "request", "sent again", "NAK, RNR NAK"]);
        assert!(plot.x.label.ends_with("(ms)"), "{}", plot.x.label);
        assert!(plot.note.contains("Recovery from loss"), "{}", plot.note);
        let svg = plot.svg().unwrap();
        let data = attribute(&svg, "<circle", "r")
            .into_iter()
            .zip(attribute(&svg, "<circle", "cx"))
            .filter(|(radius, _)| *radius == 3.0);
        let rightmost = data.map(|(_, x)| x).fold(0.0, f64::max);
        for name in names {
            let before = svg.split(&format!("\n{name}\n")).next().unwrap();
            let element = before.rsplit("<text ").next().unwrap();
            let x = attribute(&format!("<text {element}"), "<text", "x")[0];
            assert!(x > rightmost + 10.0, "{name}: {x}, data to {rightmost}");
        }
    }

    #[test]
    fn a_dot_is_drawn_for_each_packet() {
        let plot = drawn("rc_write_512B_delay5ms_td128.pcap");
        let points: usize = plot.lines.iter().map(|line| line.points.len()).sum();
        assert!(points > 200, "{points}");
        // One more for each name.
        let circles = plot.svg().unwrap().matches("<circle").count();
        assert_eq!(circles, points + plot.lines.len());
    }
}
