//! A report opened in Debian's Chromium: no errors, every plot present, and it fits a screen of
//! 1280 pixels and a printed page. Also the commands that produce and compare results.

mod legible;
mod sample;

use longhaul_bench::{Report, ResultWriter};
use longhaul_checks::{Finished, Program, longhaul};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const BROWSER: &str = "chromium";
const LIMIT: Duration = Duration::from_secs(180);
/// Width of the window, in CSS pixels.
const WIDTH: u32 = 1280;
/// Pictures of the sample: eleven plots, and of what has several seeds a box plot, three
/// distributions and a heat map.
const PICTURES: usize = 16;
/// Narrowest window of the browser.
const WINDOW_MIN: u32 = 500;

/// Runs in the page after layout, and writes its findings into it.
const PROBE: &str = r#"<script>
const svgs = [...document.querySelectorAll('svg')].map(svg => {
  const own = svg.getBoundingClientRect();
  const drawn = svg.querySelectorAll('polyline, polygon, path, line, circle, rect');
  const shapes = [...drawn].filter(shape => {
    const box = shape.getBBox();
    return shape.getTotalLength() > 0 && (box.width > 0 || box.height > 0);
  });
  // Text that lies outside of the picture is cut off.
  const outside = [...svg.querySelectorAll('text')].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < own.left - 1 || box.right > own.right + 1 ||
      box.top < own.top - 1 || box.bottom > own.bottom + 1;
  });
  const names = [...svg.querySelectorAll('text')].map(text =>
    ({ box: text.getBoundingClientRect(), text: text.textContent.trim() }));
  const overlaps = [];
  names.forEach(({ box: a, text }, i) => names.slice(i + 1).forEach(({ box: b, text: other }) => {
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 1 && down > 3) overlaps.push(text + ' / ' + other);
  }));
  return { label: svg.getAttribute('aria-label') || '', width: own.width, height: own.height,
           shapes: shapes.length, texts: names.length,
           outside: outside.map(text => text.textContent.trim()), overlaps };
});
const wide = [...document.querySelectorAll('main *')].filter(e =>
  e.getBoundingClientRect().right > innerWidth + 1);
const linked = [...document.querySelectorAll('[src], link[href]')].map(e => e.src || e.href);
const links = [...document.querySelectorAll('a[href]')].map(a => a.getAttribute('href'));
const probe = document.createElement('pre');
probe.id = 'probe';
probe.textContent = 'PROBE' + JSON.stringify({
  inner_width: innerWidth, scroll_width: document.documentElement.scrollWidth, svgs,
  wide: wide.slice(0, 5).map(e => e.outerHTML.slice(0, 120)),
  fetched: performance.getEntriesByType('resource').map(r => r.name)
    .concat(linked).filter(url => !url.startsWith('data:')),
  tables: document.querySelectorAll('table.cells').length,
  sections: document.querySelectorAll('section.experiment').length,
  dead_links: links.filter(link => !document.querySelector(link)).length,
  look: typeof look === 'undefined' ? null : look,
}) + 'EBORP';
document.body.append(probe);
</script></body>"#;

#[derive(Debug, Deserialize)]
struct Probe {
    inner_width: u32,
    scroll_width: u32,
    svgs: Vec<Svg>,
    wide: Vec<String>,
    fetched: Vec<String>,
    tables: usize,
    sections: usize,
    dead_links: usize,
    /// What a further script found.
    look: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct Svg {
    label: String,
    width: f64,
    height: f64,
    shapes: usize,
    texts: usize,
    outside: Vec<String>,
    overlaps: Vec<String>,
}

/// A directory of this test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("longhaul-checks-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a scratch folder");
        Scratch(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `true` if the browser is installed; otherwise reports that the test is skipped.
fn has_browser() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(BROWSER).is_file());
    if !found {
        let why = format!("{BROWSER} is not installed: apt-get install {BROWSER}");
        longhaul_namespace::skip(why);
    }
    found
}

fn browse(scratch: &Scratch, arguments: &[&str], width: u32, page: &Path) -> Finished {
    let mut command = Command::new(BROWSER);
    command
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--enable-logging=stderr",
        ])
        .arg(format!("--user-data-dir={}", scratch.file("profile").display()))
        .arg(format!("--window-size={width},1000"))
        .args(arguments)
        .arg(format!("file://{}", page.display()));
    let finished = Program::start(&mut command).finish(LIMIT);
    assert!(finished.status.success(), "{finished:?}");
    finished
}

/// The page's findings in a window of this width, and its console messages.
fn probe(scratch: &Scratch, html: &str, width: u32) -> (Probe, Vec<String>) {
    probe_with(scratch, html, width, false, "")
}

/// As [`probe`], on a dark or light screen, with a `script` that runs before the probe and may
/// define `look`.
fn probe_with(
    scratch: &Scratch,
    html: &str,
    width: u32,
    is_dark: bool,
    script: &str,
) -> (Probe, Vec<String>) {
    let page = scratch.file("probed.html");
    assert!(html.contains("</body>"));
    let html = html.replace("</body>", &format!("{script}{PROBE}"));
    let html = if width < WINDOW_MIN { framed(&html, width) } else { html };
    std::fs::write(&page, html).expect("a page");
    // Blink's enumeration: 0 is dark, 1 is light.
    let scheme = format!("--blink-settings=preferredColorScheme={}", u8::from(!is_dark));
    let arguments = ["--virtual-time-budget=2000", "--dump-dom", &scheme];
    let finished = browse(scratch, &arguments, width.max(WINDOW_MIN), &page);
    let dom = &finished.stdout;
    let written = dom.rsplit_once("PROBE{").and_then(|(_, rest)| rest.split_once("EBORP"));
    let (json, _) = written.unwrap_or_else(|| panic!("the probe did not run: {}", finished.stderr));
    let json = format!("{{{json}");
    let json =
        json.replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", " ").replace("&amp;", "&");
    let console =
        finished.stderr.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned);
    (serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {json}")), console.collect())
}

/// A page with `html` in a frame of this width, and its probe.
fn framed(html: &str, width: u32) -> String {
    let escaped = html.replace('&', "&amp;").replace('"', "&quot;");
    format!(
        "<!DOCTYPE html><body style='margin: 0'><iframe srcdoc=\"{escaped}\" style='width: \
         {width}px; height: 1000px; border: 0'></iframe><script>const frame = \
         document.querySelector('iframe'); frame.onload = () => document.body.append(\
         document.importNode(frame.contentDocument.querySelector('#probe'), true));</script></body>"
    )
}

fn report() -> Report {
    let (experiments, records) = sample::results();
    let report = Report::new("Published tables, reproduced").notice("A note above everything.");
    experiments.iter().fold(report, |report, experiment| report.experiment(experiment, &records))
}

mod in_a_browser {
    use super::*;

    #[test]
    fn a_report_is_whole_and_fits_the_screen() {
        if !has_browser() {
            return;
        }
        let scratch = Scratch::new("report-screen");
        let html = report().html().expect("a report");
        for width in [WIDTH, 1000] {
            let (probe, console) = probe(&scratch, &html, width);
            assert_eq!(console, [""; 0], "the console");
            assert_eq!(probe.inner_width, width);
            assert!(
                probe.scroll_width <= width,
                "{} of {width} pixels: {:?}",
                probe.scroll_width,
                probe.wide
            );
            assert_eq!(probe.fetched, [""; 0], "asked from elsewhere");
            assert_eq!((probe.sections, probe.dead_links), (7, 0));
            assert!(probe.tables >= 9, "{} tables", probe.tables);
            assert_eq!(probe.svgs.len(), PICTURES, "{:?}", probe.svgs);
            for svg in &probe.svgs {
                assert!(svg.label.starts_with("Plot: "), "{svg:?}");
                assert!(svg.width > 300.0 && svg.height > 180.0, "{svg:?}");
                assert!(svg.shapes >= 10 && svg.texts >= 8, "{svg:?}");
                assert!(svg.outside.is_empty() && svg.overlaps.is_empty(), "{svg:?}");
            }
        }
    }

    #[test]
    fn awkward_names_and_figures_fit_too() {
        if !has_browser() {
            return;
        }
        let scratch = Scratch::new("report-awkward");
        let (experiments, records) = sample::awkward();
        let title = "Pneumonoultramicroscopicsilicovolcanoconiosis".repeat(6);
        let report = experiments.iter().fold(Report::new(&title), |r, e| r.experiment(e, &records));
        let (probe, console) = probe(&scratch, &report.html().expect("a report"), WIDTH);
        assert_eq!(console, [""; 0], "the console");
        assert!(probe.scroll_width <= WIDTH, "{} pixels: {:?}", probe.scroll_width, probe.wide);
        assert_eq!((probe.sections, probe.fetched.len(), probe.dead_links), (4, 0, 0));
        assert!(probe.svgs.len() >= 4, "{:?}", probe.svgs);
        for svg in &probe.svgs {
            assert!(
                svg.shapes >= 2 && svg.outside.is_empty() && svg.overlaps.is_empty(),
                "{svg:?}"
            );
        }
    }

    #[test]
    fn it_prints_on_a_sensible_number_of_pages() {
        if !has_browser() {
            return;
        }
        let scratch = Scratch::new("report-print");
        let (page, pdf) = (scratch.file("report.html"), scratch.file("report.pdf"));
        report().write_html(&page).expect("a report");
        let print = format!("--print-to-pdf={}", pdf.display());
        browse(&scratch, &["--no-pdf-header-footer", &print], WIDTH, &page);
        let bytes = std::fs::read(&pdf).expect("a PDF");
        assert!(bytes.starts_with(b"%PDF-"));
        let text = String::from_utf8_lossy(&bytes);
        let pages = text.matches("/Type /Page\n").count() + text.matches("/Type /Page ").count();
        // The summary, and a few pages for each of seven experiments, one with repeated runs.
        assert!((8..=22).contains(&pages), "{pages} pages");
        // A4, landscape.
        let sizes = text.matches("/MediaBox [0 0 841.").count()
            + text.matches("/MediaBox [0 0 842").count();
        assert_eq!(sizes, pages, "pages of another size");
    }

    #[test]
    fn the_probe_sees_what_is_wrong() {
        if !has_browser() {
            return;
        }
        let scratch = Scratch::new("report-wrong");
        let wrong = "<!DOCTYPE html><body><main><div style='width:2000px'>x</div>\
                     <svg width='100' height='100' aria-label='a'></svg>\
                     <svg width='100' height='100'><text x='90' y='50'>cut off</text>\
                     <text x='92' y='50'>cut off</text></svg>\
                     <a href='#nowhere'>x</a><img src='missing.png'>\
                     <script>console.error('something went wrong')</script></main></body>";
        let (probe, console) = probe(&scratch, wrong, WIDTH);
        assert!(probe.scroll_width >= 2000 && !probe.wide.is_empty(), "{probe:?}");
        assert_eq!((probe.svgs[0].shapes, probe.svgs[0].texts), (0, 0));
        assert_eq!((probe.svgs[1].outside.len(), probe.svgs[1].overlaps.len()), (2, 1));
        assert_eq!((probe.fetched.len(), probe.dead_links), (1, 1), "{probe:?}");
        assert!(console.iter().any(|line| line.contains("something went wrong")), "{console:?}");
    }
}

mod commands {
    use super::*;

    fn run(arguments: &[&str]) -> (i32, String, String) {
        let finished = Program::start(Command::new(longhaul()).args(arguments)).finish(LIMIT);
        (finished.status.code().unwrap_or(-1), finished.stdout, finished.stderr)
    }

    /// The sample as a file; `change` scales the simulated figures.
    fn results(scratch: &Scratch, name: &str, change: f64) -> String {
        let path = scratch.file(name);
        let (experiments, records) = sample::results();
        let mut writer = ResultWriter::create(&path).expect("a file");
        experiments.iter().for_each(|experiment| writer.describe(experiment).expect("a line"));
        for mut record in records {
            if record.source == longhaul_bench::Source::Simulated {
                record.values.values_mut().for_each(|value| *value *= change);
            }
            writer.record(&record).expect("a line");
        }
        path.display().to_string()
    }

    #[test]
    fn report_rebuilds_everything_from_files_alone() {
        let scratch = Scratch::new("report-command");
        let file = results(&scratch, "results.jsonl", 1.0);
        let text = |name: &str| scratch.file(name).display().to_string();
        let (out, csv, svg) = (text("report.html"), text("csv"), text("svg"));
        let (code, stdout, stderr) = run(&[
            "report", &file, "--out", &out, "--csv", &csv, "--svg", &svg, "--title", "A title",
        ]);
        assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
        assert!(
            stdout.starts_with("7 experiments: ") && stdout.contains("7 tables in "),
            "{stdout}"
        );
        let (experiments, records) = sample::results();
        let direct =
            experiments.iter().fold(Report::new("A title"), |r, e| r.experiment(e, &records));
        assert_eq!(std::fs::read_to_string(&out).expect("a page"), direct.html().expect("a page"));
        assert_eq!(std::fs::read_dir(&csv).expect("a folder").count(), 7);
        assert_eq!(std::fs::read_dir(&svg).expect("a folder").count(), PICTURES);
        let (code, json, _) = run(&["report", &file, "--json", "--check"]);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!((code, &json["is_met"]), (1, &false.into()));
        let (code, text, _) = run(&["report", &file, "--only", "iown2-d1", "--check"]);
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("latency (ms)") && !text.contains("goodput"), "{text}");
    }

    #[test]
    fn report_says_what_it_cannot_read() {
        let scratch = Scratch::new("report-refusals");
        let file = results(&scratch, "results.jsonl", 1.0);
        let good = std::fs::read_to_string(&file).expect("the sample");
        let path = scratch.file("other.jsonl");
        let other = path.display().to_string();
        let refusal = |content: &str| {
            std::fs::write(&path, content).expect("a file");
            let (code, _, stderr) = run(&["report", &other]);
            assert_eq!(code, 2, "{stderr}");
            stderr.replace(&other, "FILE")
        };
        let newer = refusal(&good.replacen("\"schema\":1", "\"schema\":7", 1));
        assert!(
            newer.starts_with(
                "longhaul report: FILE line 1: schema 7; this program reads schema 1;"
            ),
            "{newer}"
        );
        let damaged = refusal(&good.replacen("\n{", "\n{\"schema\"\n{", 3));
        assert!(
            damaged.starts_with("longhaul report: FILE line 2: not a whole JSON object"),
            "{damaged}"
        );
        assert_eq!(refusal(""), "longhaul report: FILE holds no results\n");
        let (code, _, stderr) = run(&["report", "/nonexistent"]);
        assert_eq!(code, 2);
        assert!(stderr.contains("cannot read /nonexistent: No such file"), "{stderr}");
        let (code, _, stderr) = run(&["report", &file, "--only", "c1"]);
        assert!(
            code == 2 && stderr.contains("no experiment is called c1; there is go-back-n, grid,"),
            "{stderr}"
        );
        let (code, _, stderr) = run(&["report", &file, "--out", "/dev/full"]);
        assert!(code == 1 && stderr.contains("cannot write /dev/full: No space left"), "{stderr}");
        // A truncated last line is skipped and reported.
        std::fs::write(&path, &good[..good.len() - 20]).expect("a file");
        let (code, _, stderr) = run(&["report", &other, "--only", "iown2-d1"]);
        assert!(code == 0 && stderr.contains("was cut and is left out"), "{stderr}");
    }

    #[test]
    fn compare_fails_beyond_the_tolerance_and_where_points_are_missing() {
        let scratch = Scratch::new("compare");
        let (a, b) = (results(&scratch, "a.jsonl", 1.0), results(&scratch, "b.jsonl", 1.02));
        assert_eq!(run(&["compare", &a, &a, "--tolerance", "0"]).0, 0);
        let (code, stdout, _) = run(&["compare", &a, &b]);
        assert_eq!(code, 1, "{stdout}");
        assert!(stdout.contains("+2.00 %  ✗") && stdout.contains("1.0200"), "{stdout}");
        assert_eq!(run(&["compare", &a, &b, "--tolerance", "2.1%"]).0, 0);
        // A single different figure is listed first.
        let text = std::fs::read_to_string(&a).expect("the sample");
        let one = scratch.file("one.jsonl");
        std::fs::write(&one, text.replacen("\"energy_ws\":2.03}", "\"energy_ws\":3.03}", 1))
            .expect("a file");
        let (code, stdout, _) = run(&["compare", &a, &one.display().to_string()]);
        let line = stdout.lines().nth(1).unwrap_or_default();
        assert!(
            code == 1 && line.starts_with("power ") && line.ends_with("+49.26 %  ✗"),
            "{stdout}"
        );
        let half = std::fs::read_to_string(&a).expect("the sample");
        let half: String = half.lines().take(300).map(|line| line.to_owned() + "\n").collect();
        let part = scratch.file("part.jsonl");
        std::fs::write(&part, half).expect("a file");
        let part = part.display().to_string();
        let (code, stdout, _) = run(&["compare", &a, &part]);
        assert!(code == 1 && stdout.contains("Only in "), "{stdout}");
        assert_eq!(run(&["compare", &a, &part, "--common"]).0, 0);
        let (code, json, _) = run(&["compare", &a, &b, "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!((code, &json["is_same"]), (1, &false.into()));
        assert!(json["beyond"].as_u64() > Some(0), "{}", json["beyond"]);
        let (code, _, stderr) = run(&["compare", &a, &b, "--tolerance", "much"]);
        assert!(code == 2 && stderr.contains("not a tolerance"), "{stderr}");
    }

    /// The campaign as a file, its measured goodput scaled by `change`.
    fn campaign(scratch: &Scratch, name: &str, change: f64, kernel: &str) -> String {
        let path = scratch.file(name);
        let mut writer = ResultWriter::create(&path).expect("a file");
        for mut record in sample::campaign().1 {
            if let Some(made) = &mut record.provenance {
                made.environment.insert("kernel".to_owned(), kernel.to_owned());
            }
            if record.source == longhaul_bench::Source::Measured {
                record.values.values_mut().for_each(|value| *value *= change);
            }
            writer.record(&record).expect("a line");
        }
        path.display().to_string()
    }

    #[test]
    fn compare_has_intervals_of_repeated_runs_and_names_what_differs() {
        let scratch = Scratch::new("compare-campaigns");
        let a = campaign(&scratch, "a.jsonl", 1.0, "6.1");
        // Half a percent is less than the runs scatter.
        let b = campaign(&scratch, "b.jsonl", 1.005, "6.5");
        let (code, stdout, _) = run(&["compare", &a, &b, "--tolerance", "0.1%"]);
        assert_eq!(code, 0, "{stdout}");
        for part in [
            "95 % of B / A",
            "+0.50 %  ~",
            "\nProvenance differs:\n  campaign  kernel: 6.1 → 6.5\n",
            "4 figures of fewer than 5 runs",
        ] {
            assert!(stdout.contains(part), "{part}: {stdout}");
        }
        let c = campaign(&scratch, "c.jsonl", 1.5, "6.1");
        let (code, stdout, _) = run(&["compare", &a, &c]);
        assert!(code == 1 && stdout.contains("+50.00 %  ✗"), "{stdout}");
        assert!(!stdout.contains("Provenance"), "{stdout}");
        let (_, json, _) = run(&["compare", &a, &c, "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        let all = json["differences"].as_array().expect("a list");
        let measured = |difference: &&serde_json::Value| {
            difference["source_a"] == "measured" && difference["value"] == "goodput_bps"
        };
        let measured: Vec<_> = all.iter().filter(measured).collect();
        assert_eq!(measured.len(), 24);
        for difference in measured {
            let interval = [0, 1].map(|end| difference["ratio_interval"][end].as_f64());
            assert!(interval[0] < Some(1.5) && interval[1] > Some(1.5), "{difference}");
        }
    }
}
