"""A tiny model that reads images: LLaVA with random weights, and the embedded model's tokenizer with one token more."""

from pathlib import Path
from typing import Final

from deploy.embedded_model import tokenizer as tokens

IMAGE: Final = "<image>"
SIDE, PATCH = 112, 14  # pixels: an image is 64 tokens
SEED: Final = 9
CHAT_TEMPLATE: Final = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% for part in message['content'] %}"
    "{{ '<image>' if part['type'] == 'image' else part['text'] }}"
    "{% endfor %}"
    "{% endfor %}"
)


def write(folder: Path) -> Path:
    """Write model, tokenizer and processor as vLLM reads them; returns the folder."""
    import torch  # these take seconds to import
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    words = type(tokens.load()).from_str(tokens.load().to_str())  # a copy: the loaded one is shared
    words.add_special_tokens([IMAGE])
    tokens.write(words, folder)
    text = LlamaConfig(
        vocab_size=tokens.VOCABULARY_SIZE + 8,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=tokens.CONTEXT_TOKENS,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=2,
    )
    eyes = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=64,
        initializer_range=0.1,
    )
    config = LlavaConfig(
        vision_config=eyes,
        text_config=text,
        image_token_index=words.token_to_id(IMAGE),
        image_seq_length=(SIDE // PATCH) ** 2,
    )
    torch.manual_seed(SEED)
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    from transformers import AutoTokenizer

    size = {"height": SIDE, "width": SIDE}
    LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size=size, crop_size=size),
        tokenizer=AutoTokenizer.from_pretrained(folder),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=IMAGE,
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder
