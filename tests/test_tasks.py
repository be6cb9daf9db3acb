"""What studies ask and how answers are scored: metrics by hand, and each benchmark's published layout read from files of our own."""

import base64
import csv
import io
import json

import datasets
import pytest
from PIL import Image

from macs.eval.cells import batched
from macs.eval.metrics import chosen_option, exact, option, relaxed, vqa, vqa_form, yes_no
from macs.eval.tables import mixed
from macs.eval.tasks import Question, digest, read_tasks


def picture(colour=(200, 10, 10)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(out, "JPEG")
    return out.getvalue()


def colour_of(question: Question) -> tuple[int, ...]:
    return tuple(round(x, -1) for x in question.picture().getpixel((5, 5)))


def test_exact_match_looks_through_case_and_outer_spaces_alone():
    assert exact(" Red ", ["red", "crimson"]) == 1 and exact("red.", ["red"]) == 0 and exact("a red", ["red"]) == 0


@pytest.mark.parametrize(
    "raw, form",
    [
        ("The Two Dogs!", "2 dogs"),
        ("1,000 m", "1000 m"),
        ("3.5", "3.5"),
        ("e.g. this", "eg this"),
        ("stop-sign", "stop sign"),
        ("dont", "don't"),
        ("None", "0"),
        ("", ""),
    ],
)
def test_vqa_form(raw, form):
    assert vqa_form(raw) == form


@pytest.mark.parametrize(
    "agree, score",
    # k of ten people agree: the answer is compared with each nine; k times with k - 1 left, 10 - k times with k
    [(0, 0.0), (1, 0.9 / 3), (2, (2 * 1 / 3 + 8 * 2 / 3) / 10), (3, (3 * 2 / 3 + 7) / 10), (4, 1.0), (10, 1.0)],
)
def test_vqa_accuracy_leaves_each_person_out_once(agree, score):
    assert vqa("Coca Cola!", ["coca cola"] * agree + ["pepsi"] * (10 - agree)) == pytest.approx(score)


@pytest.mark.parametrize(
    "answer, wanted, score",
    [("105", "100", 1), ("106", "100", 0), ("95", "100", 1), ("-3", "3", 0), ("12%", "0.12", 1), ("1,030", "1000", 1), ("Yes", "yes", 1), ("ten", "10", 0), ("0", "0", 1)],
)  # fmt: skip
def test_relaxed_accuracy_lets_numbers_be_five_percent_off(answer, wanted, score):
    assert relaxed(answer, [wanted]) == score


@pytest.mark.parametrize(
    "answer, letter",
    [("B", "B"), ("(B)", "B"), ("B. a cat", "B"), ("B: cat", "B"), ("The answer is (B).", "B"), ("Option B", "B"), ("a cat", "B"), ("It is a CAT", "B"),
     ("A dog", "A"), ("a cat or a dog", None), ("E", None), ("", None), ("nothing", None)],
)  # fmt: skip
def test_an_option_is_named_by_letter_or_by_its_text_alone(answer, letter):
    assert chosen_option(answer, ("dog", "cat", "bird", "fish")) == letter
    assert option(answer, ["B"], ("dog", "cat", "bird", "fish")) == (letter == "B")


def test_yes_and_no():
    assert yes_no("Yes, it is.", ["Yes"]) == 1 and yes_no("No", ["yes"]) == 0 and yes_no("I know", ["no"]) == 0 and yes_no("no, yes", ["No"]) == 1


def parquet(folder, rows):
    features = datasets.Features({**{k: datasets.Image() if k == "image" else datasets.Value("string") for k in rows[0]}})
    if isinstance(rows[0].get("answers", rows[0].get("label")), list):
        features["answers" if "answers" in rows[0] else "label"] = datasets.Sequence(datasets.Value("string"))
    datasets.Dataset.from_list(rows, features=features).to_parquet(folder / "data-00000-of-00001.parquet")


def test_textvqa_json_and_pictures_beside_it(tmp_path):
    (tmp_path / "train_images").mkdir()
    (tmp_path / "train_images" / "ab12.jpg").write_bytes(picture())
    data = [{"question_id": 1, "image_id": "ab12", "question": "what is written?", "answers": ["stop"] * 9 + ["go"], "set_name": "val"}]
    (tmp_path / "TextVQA_0.5.1_val.json").write_text(json.dumps({"dataset_type": "val", "data": data}))
    (found,) = read_tasks([f"textvqa:{tmp_path}/TextVQA_0.5.1_val.json"])
    assert found.prompt == "What is written?\nAnswer the question using a single word or phrase." and found.metric == "vqa" and len(found.answers) == 10
    assert colour_of(found) == (200, 10, 10) and found.score("Stop") == 1 and found.score("go") == pytest.approx(0.3)


def test_textvqa_through_datasets(tmp_path):
    parquet(tmp_path, [{"image": {"bytes": picture((10, 200, 10)), "path": None}, "question": "which bus?", "answers": ["5"] * 10}])
    (found,) = read_tasks([f"textvqa:{tmp_path}"])
    assert colour_of(found) == (10, 200, 10) and found.score("five") == 1


def test_chartqa_json_and_through_datasets(tmp_path):
    (tmp_path / "png").mkdir()
    (tmp_path / "png" / "7.png").write_bytes(picture())
    for half in ("human", "augmented"):
        (tmp_path / f"test_{half}.json").write_text(json.dumps([{"imgname": "7.png", "query": "How many?", "label": "200"}]))
    human, augmented = read_tasks([f"chartqa:{tmp_path}/test_{half}.json" for half in ("human", "augmented")])
    assert (human.task, augmented.task) == ("chartqa human", "chartqa augmented") and human.score("191") == 1 and human.score("189") == 0
    parquet(tmp_path, [{"image": {"bytes": picture(), "path": None}, "query": "How many?", "label": ["4"], "human_or_machine": "human"}])
    (found,) = read_tasks([f"chartqa:{tmp_path}"])
    assert found.task == "chartqa human" and found.score("4.1") == 1


def test_mmstar_through_datasets(tmp_path):
    question = "Which colour?\nOptions: A: red, B: dark blue, C: green, D: none of them"
    parquet(tmp_path, [{"index": "0", "question": question, "image": {"bytes": picture(), "path": None}, "answer": "B", "category": "coarse perception"}])
    (found,) = read_tasks([f"mmstar:{tmp_path}"])
    assert found.options == ("red", "dark blue", "green", "none of them") and found.task == "mmstar coarse perception"
    assert found.score("B") == 1 and found.score("dark blue") == 1 and found.score("red") == 0


def test_mmbench_tab_separated(tmp_path):
    with (tmp_path / "MMBench_DEV_EN.tsv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["index", "question", "hint", "A", "B", "C", "D", "answer", "category", "image", "l2-category"])
        encoded = base64.b64encode(picture()).decode()
        writer.writerow([0, "What animal?", "Look close.", "dog", "cat", "", "", "A", "animals", encoded, "finegrained"])
    (found,) = read_tasks([f"mmbench:{tmp_path}/MMBench_DEV_EN.tsv"])
    assert found.prompt == "Look close.\nWhat animal?\nA. dog\nB. cat\nAnswer with the option's letter from the given choices directly."
    assert found.options == ("dog", "cat") and found.score("A.") == 1 and colour_of(found) == (200, 10, 10)


def test_mme_folder_and_through_datasets(tmp_path):
    plain, nested = tmp_path / "color", tmp_path / "posters"
    (nested / "images").mkdir(parents=True), (nested / "questions_answers_YN").mkdir(), plain.mkdir()
    (plain / "1.jpg").write_bytes(picture()), (nested / "images" / "2.png").write_bytes(picture((10, 10, 200)))
    (plain / "1.txt").write_text("Is it red? Please answer yes or no.\tYes\nIs it blue? Please answer yes or no.\tNo\n")
    (nested / "questions_answers_YN" / "2.txt").write_text("Is it blue? Please answer yes or no.\tYes\n")
    found = read_tasks([f"mme:{tmp_path}"])
    assert [q.task for q in found] == ["mme color", "mme color", "mme posters"] and [q.score("Yes.") for q in found] == [1, 0, 1]
    assert colour_of(found[2]) == (10, 10, 200)
    (tmp_path / "hub").mkdir()
    parquet(tmp_path / "hub", [{"question_id": "1", "image": {"bytes": picture(), "path": None}, "question": "Is it?", "answer": "No", "category": "count"}])
    (hub,) = read_tasks([f"mme:{tmp_path}/hub"])
    assert hub.task == "mme count" and hub.score("no") == 1


def test_realworldqa_through_datasets(tmp_path):
    image = {"bytes": picture(), "path": None}
    options = "Which way?\n\nA. Left\nB. Right\nPlease answer directly with only the letter of the correct option and nothing else."
    parquet(tmp_path, [{"image": image, "question": options, "answer": "B"}, {"image": image, "question": "How many cars?", "answer": "3"}])
    chosen, counted = read_tasks([f"realworldqa:{tmp_path}"])
    assert chosen.score("B") == 1 and chosen.score("right") == 1 and chosen.score("A") == 0 and counted.score("3") == 1 and counted.score("30") == 0


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("mmlu:x", "tasks is 'mmlu:x'; use embedded"),
        ("nowhere", "tasks is 'nowhere'"),
        ("textvqa:nowhere.json", "textvqa is looked for at nowhere.json, which does not exist"),
        ("embedded:0", "The draw is '0'; use embedded:1 to embedded:13"),
        ("embedded:x", "The draw is 'x'"),
    ],
)
def test_a_set_that_is_none_is_refused(name, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_tasks([name])


def test_a_benchmark_file_with_other_columns_is_refused_by_its_question(tmp_path):
    path = tmp_path / "test_human.json"
    path.write_text(json.dumps([{"question": "?", "label": "1"}]))
    with pytest.raises(ValueError, match="Question 1 of test_human.json is not as chartqa publishes it"):
        read_tasks([f"chartqa:{path}"])


def write_lines(folder, *rows):
    (folder / "questions.jsonl").write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))


def test_a_folder_of_ours(tmp_path):
    (tmp_path / "a.jpg").write_bytes(picture())
    write_lines(
        tmp_path,
        {"task": "x", "prompt": "What?", "answers": ["red"], "image": "a.jpg"},
        "",
        {"task": "y", "prompt": "Number?", "answers": ["10"], "metric": "relaxed"},
        {"task": "x", "prompt": "Only a prompt"},
    )
    found = read_tasks([str(tmp_path)])
    assert [q.task for q in found] == ["x", "x", "y"]  # by task
    assert found[0].picture().size == (40, 30) and found[2].score("10.4") == 1 and found[1].answers == () and found[1].picture() is None
    assert len(read_tasks([str(tmp_path)], limit=1)) == 2


@pytest.mark.parametrize(
    "row, sentence",
    [
        ("{", "Line 1 of questions.jsonl is not JSON"),
        ({"answers": ["x"]}, "is not JSON with a"),
        ("[1]", "is not JSON with a"),
        ({"prompt": 3}, "needs a text"),
        ({"prompt": "x", "answers": "y"}, "needs a text"),
        ({"prompt": "x", "metric": "bleu"}, "metric 'bleu'; use one of exact"),
        ({"prompt": "x", "image": "../secret.png"}, "names the image '../secret.png', which is not in the folder"),
        ({"prompt": "x", "image": "missing.png"}, "which is not in the folder"),
    ],
)
def test_a_bad_line_is_named(tmp_path, row, sentence):
    (tmp_path.parent / "secret.png").write_bytes(picture())
    write_lines(tmp_path, row)
    with pytest.raises(ValueError, match=sentence):
        read_tasks([str(tmp_path)])


def test_fresh_draws_repeat_themselves_and_differ_from_each_other_and_from_the_held_out_split():
    one, again, two, held = (read_tasks([name], limit=2) for name in ("embedded:1", "embedded:1", "embedded:2", "embedded"))
    assert digest(one) == digest(again) and len({digest(x) for x in (one, two, held)}) == 3
    assert [q.task for q in one] == [q.task for q in held]


def test_a_digest_covers_pictures_answers_and_order():
    a, b = Question("t", "p", ("x",), picture()), Question("t", "p", ("x",), picture((1, 2, 3)))
    assert len({digest(x) for x in ([a], [b], [a, b], [b, a], [Question("t", "p", ("y",), picture())])}) == 5


def test_batches_hold_one_task_each_and_mixed_ones_both_kinds():
    questions = [Question("p", str(i), ("x",), picture()) for i in range(9)] + [Question("t", str(i), ("x",)) for i in range(5)]
    assert [len(b) for b in batched(questions, 4)] == [4, 4, 1, 4, 1]
    assert all(len({q.task for q in b}) == 1 for b in batched(questions, 4))
    for pictures, texts, count in ((0, 4, 1), (1, 3, 1), (2, 2, 2), (4, 0, 2)):
        batches = mixed(questions, pictures, texts)
        assert len(batches) == count and all([q.task for q in b] == ["p"] * pictures + ["t"] * texts for b in batches)
        used = [q.prompt + q.task for b in batches for q in b]
        assert len(used) == len(set(used))
