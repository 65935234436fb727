//! `--executor slurm` with Debian's Slurm on this machine. Skipped, loudly, without the packages or
//! root.

use super::{LIMIT, Place};
use longhaul_checks::{Program, Slurm, longhaul};
use std::fs;

#[test]
fn a_job_array_brings_the_results_of_a_local_sweep_and_goes_on_like_one() {
    let place = Place::new();
    let Some(slurm) = Slurm::start(&place.runtime.path().join("slurm")) else { return };
    let sweep = "sweep x.toml --vary flow.size=4K..64K,x2 --vary path.distance=1km,10km";
    let submit = |more: &str| {
        let mut command = place.command(&format!("{sweep} --executor slurm --out o {more}"));
        Program::start(slurm.of(&mut command)).finish(LIMIT)
    };
    // Half of the results exist, from a sweep on this machine.
    assert!(
        place
            .run("sweep x.toml --vary flow.size=4K..64K,x2 --vary path.distance=1km --out o")
            .status
            .success()
    );
    let done = submit("--tasks 3");
    assert!(done.status.success(), "{done}");
    assert!(done.stderr.contains("5 of 10 points already have results"), "{done}");
    assert!(done.stderr.contains("submitted job"), "{done}");
    assert!(done.stdout.starts_with("10 points, 5 of them new"), "{done}");
    assert!(place.run(&format!("{sweep} --out local")).status.success());
    assert_eq!(place.results("o"), place.results("local"));
    let script = fs::read_to_string(place.runtime.path().join("o/sweep.sbatch")).unwrap();
    assert!(script.contains("#SBATCH --array=0-2\n"), "{script}");
    let program = longhaul().canonicalize().unwrap();
    assert!(script.contains(&format!("exec '{}' 'sweep'", program.display())), "{script}");
    // Nothing is left to do, and nothing is submitted.
    let again = submit("");
    assert!(again.status.success() && !again.stderr.contains("submitted"), "{again}");
    // sbatch's refusal is reported.
    let mut refused =
        place.command(&format!("{sweep} --executor slurm --out p --sbatch=--partition=none"));
    let refused = Program::start(slurm.of(&mut refused)).finish(LIMIT);
    assert_eq!(refused.status.code(), Some(1), "{refused}");
    assert!(
        refused.stderr.contains("sbatch refused") && refused.stderr.contains("partition"),
        "{refused}"
    );
}

#[test]
fn a_wait_that_is_interrupted_leaves_a_job_that_is_collected_later() {
    let place = Place::new();
    let Some(slurm) = Slurm::start(&place.runtime.path().join("slurm")) else { return };
    let sweep = "sweep x.toml --vary flow.size=4K..8K,+1K --out o";
    let mut command =
        place.command(&format!("{sweep} --executor slurm --tasks 2 --sbatch=--begin=now+20"));
    let program = Program::start_group(slurm.of(&mut command));
    let manifest = place.runtime.path().join("o/sweep.json");
    slurm
        .wait("a job", || fs::read_to_string(&manifest).is_ok_and(|text| text.contains("\"job\"")));
    program.interrupt_group();
    let ended = program.finish(LIMIT);
    assert_eq!(ended.status.code(), Some(130), "{ended}");
    assert!(ended.stderr.contains("continues; the same command waits for it"), "{ended}");
    // No other process runs its points meanwhile.
    let mut local = place.command(sweep);
    let local = Program::start(slurm.of(&mut local)).finish(LIMIT);
    assert!(local.stderr.contains("works on these points"), "{local}");
    let mut again = place.command(&format!("{sweep} --executor slurm"));
    let again = Program::start(slurm.of(&mut again)).finish(LIMIT);
    assert!(again.status.success(), "{again}");
    assert!(again.stderr.contains("which was submitted before"), "{again}");
    assert_eq!(place.results("o").len(), 5);
}
