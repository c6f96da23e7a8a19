"""Papers behind the parts: citation key -> BibTeX."""

from __future__ import annotations

from hvd_sparse.errors import UnknownName

PAPERS = {
    "chen2021ldte": """@article{chen2021ldte,
  author  = {Chen, Shi-da and Liu, Qiang and Han, Liang},
  title   = {Gradient sparsification compression approach to reducing communication in distributed training},
  journal = {Journal of ZheJiang University (Engineering Science)},
  volume  = {55}, number = {2}, pages = {386--394}, year = {2021},
  doi     = {10.3785/j.issn.1008-973X.2021.02.019}
}""",
    "aji2017sparse": """@inproceedings{aji2017sparse,
  author    = {Aji, Alham Fikri and Heafield, Kenneth},
  title     = {Sparse communication for distributed gradient descent},
  booktitle = {Proceedings of the 2017 Conference on Empirical Methods in Natural Language Processing},
  pages     = {440--445}, year = {2017}
}""",
    "stich2018sparsified": """@inproceedings{stich2018sparsified,
  author    = {Stich, Sebastian U. and Cordonnier, Jean-Baptiste and Jaggi, Martin},
  title     = {Sparsified {SGD} with memory},
  booktitle = {Advances in Neural Information Processing Systems 31},
  pages     = {4452--4463}, year = {2018}
}""",
    "alabi2012fast": """@article{alabi2012fast,
  author = {Alabi, Tolu and Blanchard, Jeffrey D. and Gordon, Bradley and Steinbach, Russel},
  title = {Fast k-selection algorithms for graphics processing units},
  journal = {Journal of Experimental Algorithmics},
  volume = {17},
  number = {4},
  pages = {1--29},
  year = {2012}
}""",
    "lin2018dgc": """@inproceedings{lin2018dgc,
  author = {Lin, Yujun and Han, Song and Mao, Huizi and Wang, Yu and Dally, William J.},
  title = {Deep gradient compression: reducing the communication bandwidth for distributed training},
  booktitle = {International Conference on Learning Representations},
  year = {2018},
  eprint = {1712.01887},
  archiveprefix = {arXiv}
}""",
    "fang2019redsync": """@article{fang2019redsync,
  author = {Fang, Jiarui and Fu, Haohuan and Yang, Guangwen and Hsieh, Cho-Jui},
  title = {{RedSync}: reducing synchronization bandwidth for distributed deep learning training system},
  journal = {Journal of Parallel and Distributed Computing},
  volume = {133},
  pages = {30--39},
  year = {2019},
  doi = {10.1016/j.jpdc.2019.05.016}
}""",
    "shi2019understanding": """@misc{shi2019understanding,
  author = {Shi, Shaohuai and Chu, Xiaowen and Cheung, Ka Chun and See, Simon},
  title = {Understanding top-k sparsification in distributed deep learning},
  year = {2019},
  eprint = {1911.08772},
  archiveprefix = {arXiv}
}""",
    "chen2018adacomp": """@inproceedings{chen2018adacomp,
  author = {Chen, Chia-Yu and Choi, Jungwook and Brand, Daniel and Agrawal, Ankur and Zhang, Wei and Gopalakrishnan, Kailash},
  title = {{AdaComp}: adaptive residual gradient compression for data-parallel distributed training},
  booktitle = {32nd AAAI Conference on Artificial Intelligence},
  year = {2018},
  eprint = {1712.02679},
  archiveprefix = {arXiv}
}""",
    "abdelmoniem2021sidco": """@inproceedings{abdelmoniem2021sidco,
  author = {Abdelmoniem, Ahmed M. and Elzanaty, Ahmed and Alouini, Mohamed-Slim and Canini, Marco},
  title = {An efficient statistical-based gradient compression technique for distributed training systems},
  booktitle = {Proceedings of Machine Learning and Systems},
  year = {2021},
  eprint = {2101.10761},
  archiveprefix = {arXiv}
}""",
    "sahu2021rethinking": """@inproceedings{sahu2021rethinking,
  author = {Sahu, Atal Narayan and Dutta, Aritra and Abdelmoniem, Ahmed M. and Banerjee, Trambak and Canini, Marco and Kalnis, Panos},
  title = {Rethinking gradient sparsification as total error minimization},
  booktitle = {Advances in Neural Information Processing Systems 34},
  year = {2021},
  eprint = {2108.00951},
  archiveprefix = {arXiv}
}""",
    "strom2015scalable": """@inproceedings{strom2015scalable,
  author = {Strom, Nikko},
  title = {Scalable distributed {DNN} training using commodity {GPU} cloud computing},
  booktitle = {16th Annual Conference of the International Speech Communication Association},
  year = {2015}
}""",
    "sun2019csc": """@misc{sun2019csc,
  author = {Sun, Peng and Feng, Wansen and Han, Ruobing and Yan, Shengen and Wen, Yonggang},
  title = {Optimizing network performance for distributed {DNN} training on {GPU} clusters: {ImageNet/AlexNet} training in 1.5 minutes},
  year = {2019},
  eprint = {1902.06855},
  archiveprefix = {arXiv}
}""",
    "sattler2019stc": """@article{sattler2019stc,
  author = {Sattler, Felix and Wiedemann, Simon and M{\\"u}ller, Klaus-Robert and Samek, Wojciech},
  title = {Robust and communication-efficient federated learning from non-i.i.d. data},
  journal = {IEEE Transactions on Neural Networks and Learning Systems},
  year = {2019},
  eprint = {1903.02891},
  archiveprefix = {arXiv}
}""",
    "karimireddy2019error": """@inproceedings{karimireddy2019error,
  author = {Karimireddy, Sai Praneeth and Rebjock, Quentin and Stich, Sebastian U. and Jaggi, Martin},
  title = {Error feedback fixes {SignSGD} and other gradient compression schemes},
  booktitle = {International Conference on Machine Learning},
  year = {2019},
  eprint = {1901.09847},
  archiveprefix = {arXiv}
}""",
    "wen2017terngrad": """@inproceedings{wen2017terngrad,
  author = {Wen, Wei and Xu, Cong and Yan, Feng and Wu, Chunpeng and Wang, Yandan and Chen, Yiran and Li, Hai},
  title = {{TernGrad}: ternary gradients to reduce communication in distributed deep learning},
  booktitle = {Advances in Neural Information Processing Systems 30},
  year = {2017}
}""",
    "chen2020scalecom": """@inproceedings{chen2020scalecom,
  author = {Chen, Chia-Yu and Ni, Jiamin and Lu, Songtao and Cui, Xiaodong and Chen, Pin-Yu and Sun, Xiao and Wang, Naigang and Venkataramani, Swagath and Srinivasan, Vijayalakshmi and Zhang, Wei and Gopalakrishnan, Kailash},
  title = {{ScaleCom}: scalable sparsified gradient compression for communication-efficient distributed training},
  booktitle = {Advances in Neural Information Processing Systems 33},
  year = {2020},
  eprint = {2104.11125},
  archiveprefix = {arXiv}
}""",
    "golomb1966run": """@article{golomb1966run,
  author  = {Golomb, Solomon W.},
  title   = {Run-length encodings},
  journal = {IEEE Transactions on Information Theory},
  volume  = {12}, number = {3}, pages = {399--401}, year = {1966}
}""",
    "xu2021deepreduce": """@inproceedings{xu2021deepreduce,
  author = {Xu, Hang and Kostopoulou, Kelly and Dutta, Aritra and Li, Xin and Ntoulas, Alexandros and Kalnis, Panos},
  title = {{DeepReduce}: a sparse-tensor communication framework for federated deep learning},
  booktitle = {Advances in Neural Information Processing Systems 34},
  year = {2021}
}""",
    "shi2019gtopk": """@inproceedings{shi2019gtopk,
  author = {Shi, Shaohuai and Wang, Qiang and Zhao, Kaiyong and Tang, Zhenheng and Wang, Yuxin and Huang, Xiang and Chu, Xiaowen},
  title = {A distributed synchronous {SGD} algorithm with global top-k sparsification for low bandwidth networks},
  booktitle = {39th International Conference on Distributed Computing Systems},
  year = {2019},
  eprint = {1901.04359},
  archiveprefix = {arXiv}
}""",
    "shi2019mgwfbp": """@inproceedings{shi2019mgwfbp,
  author = {Shi, Shaohuai and Chu, Xiaowen and Li, Bo},
  title = {{MG-WFBP}: efficient data communication for distributed synchronous {SGD} algorithms},
  booktitle = {IEEE Conference on Computer Communications},
  year = {2019},
  eprint = {1811.11141},
  archiveprefix = {arXiv}
}""",
    "shi2020mgs": """@inproceedings{shi2020mgs,
  author = {Shi, Shaohuai and Wang, Qiang and Chu, Xiaowen and Li, Bo and Qin, Yang and Liu, Ruihao and Zhao, Xinxiao},
  title = {Communication-efficient distributed deep learning with merged gradient sparsification on {GPUs}},
  booktitle = {IEEE Conference on Computer Communications},
  year = {2020}
}""",
    "shi2020lags": """@inproceedings{shi2020lags,
  author = {Shi, Shaohuai and Tang, Zhenheng and Wang, Qiang and Zhao, Kaiyong and Chu, Xiaowen},
  title = {Layer-wise adaptive gradient sparsification for distributed deep learning with convergence guarantees},
  booktitle = {24th European Conference on Artificial Intelligence},
  year = {2020},
  eprint = {1911.08727},
  archiveprefix = {arXiv}
}""",
    "li2022oktopk": """@inproceedings{li2022oktopk,
  author = {Li, Shigang and Hoefler, Torsten},
  title = {Near-optimal sparse allreduce for distributed deep learning},
  booktitle = {Proceedings of the 27th ACM SIGPLAN Symposium on Principles and Practice of Parallel Programming},
  year = {2022},
  doi = {10.1145/3503221.3508399},
  eprint = {2201.07598},
  archiveprefix = {arXiv}
}""",
    "sarfi2025sparseloco": """@misc{sarfi2025sparseloco,
  author = {Sarfi, Amir and Th{\\'e}rien, Benjamin and Lidin, Joel and Belilovsky, Eugene},
  title = {Communication efficient {LLM} pre-training with {SparseLoCo}},
  year = {2025},
  eprint = {2508.15706},
  archiveprefix = {arXiv}
}""",
    "sattler2019sbc": """@inproceedings{sattler2019sbc,
  author = {Sattler, Felix and Wiedemann, Simon and M{\\"u}ller, Klaus-Robert and Samek, Wojciech},
  title = {Sparse binary compression: towards distributed deep learning with minimal communication},
  booktitle = {International Joint Conference on Neural Networks},
  year = {2019},
  eprint = {1805.08768},
  archiveprefix = {arXiv}
}""",
    "bernstein2019majority": """@inproceedings{bernstein2019majority,
  author = {Bernstein, Jeremy and Zhao, Jiawei and Azizzadenesheli, Kamyar and Anandkumar, Anima},
  title = {{signSGD} with majority vote is communication efficient and fault tolerant},
  booktitle = {International Conference on Learning Representations},
  year = {2019},
  eprint = {1810.05291},
  archiveprefix = {arXiv}
}""",
    "douillard2023diloco": """@misc{douillard2023diloco,
  author = {Douillard, Arthur and Feng, Qixuan and Rusu, Andrei A. and Chhaparia, Rachita and Donchev, Yani and Kuncoro, Adhiguna and Ranzato, Marc'Aurelio and Szlam, Arthur and Shen, Jiajun},
  title = {{DiLoCo}: distributed low-communication training of language models},
  year = {2023},
  eprint = {2311.08105},
  archiveprefix = {arXiv}
}""",
    "kingma2015adam": """@inproceedings{kingma2015adam,
  author        = {Kingma, Diederik P. and Ba, Jimmy},
  title         = {Adam: a method for stochastic optimization},
  booktitle     = {International Conference on Learning Representations},
  year          = {2015},
  eprint        = {1412.6980},
  archiveprefix = {arXiv}
}""",
}


def bibtex(key: str) -> str:
    """Return the BibTeX entry of a citation key.

    Raises
    ------
    UnknownName : no paper has that key
    """
    try:
        return PAPERS[key]
    except KeyError:
        raise UnknownName(
            f"no paper has the key {key!r}; there are: {', '.join(sorted(PAPERS))}"
        ) from None
